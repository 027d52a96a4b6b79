"""What happens between the command line and the first actor: checks of arguments, inputs and machine, and Ray."""
