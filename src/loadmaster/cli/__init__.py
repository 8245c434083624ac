"""The command line: one file a command. `loadmaster.cli.main` lists them."""
