"""What tests of the kernel, and of what is built on it, are made of. Public."""
