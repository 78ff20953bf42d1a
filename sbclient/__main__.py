"""`python -m sbclient`: the command line where the program `sbclient` is not on the path."""

from sbclient.cli import main

if __name__ == "__main__":
    main()
