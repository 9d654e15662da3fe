"""What holds for every test: Ctrl-C is heard, also where whoever started the tests had it ignored."""

import signal

# A script that starts the tests in the background has SIGINT ignored for them, and trio then installs no handler:
# the tests of KeyboardInterrupt would wait for one that never comes.
signal.signal(signal.SIGINT, signal.default_int_handler)
