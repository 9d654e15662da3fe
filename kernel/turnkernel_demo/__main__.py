"""`python -m turnkernel_demo`: the same as `kernel-demo`."""

from .cli import main

main()
