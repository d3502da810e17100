"""The options and the help of every command, by subject; the commands themselves stand where they are run."""
