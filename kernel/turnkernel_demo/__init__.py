"""The `kernel-demo` command: scenarios, their runner, the terminal and reports. May import every other package."""
