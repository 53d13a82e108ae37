"""The program `mpt`, and `python -m mpt_cli`: hears signals before anything else is imported."""

from mpt_cli.signals import Watch


def main() -> None:
    with Watch() as watch:
        from mpt_cli import cli

        watch.leave(cli.main())


if __name__ == "__main__":
    main()
