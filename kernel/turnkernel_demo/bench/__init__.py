"""The measurements of `kernel-demo bench`. Imports nothing by itself.

Every figure stands beside its bare floor: the same thing done with nothing of ours, measured in the same process
and minute, turn by turn with it. What is compared between machines and days is the ratio.
"""
