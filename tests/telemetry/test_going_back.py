"""A rollback: what is shown goes on from the checkpoint."""



from mpt_cli.telemetry.console.plain import Narrator, PlainConsole
from mpt_cli.telemetry.records import Event


def overflow(step: int) -> Event:
    return Event(step, 1, "overflow", 4.0, 4.0)


def test_the_count_of_skips_goes_back_too(clock) -> None:
    narrator = Narrator(0.0, clock)
    narrator.add([overflow(1), overflow(12), overflow(13)])
    assert narrator.sentences(at_once=True)[0].endswith("3 of 13 steps so far")
    narrator.rewind(10, 1)
    narrator.add([overflow(11)])
    assert narrator.sentences(at_once=True)[0].endswith("2 of 11 steps so far")


def test_what_is_waiting_is_told_before_it_is_forgotten(header, clock) -> None:
    written: list[str] = []
    console = PlainConsole(written.append, clock)
    console.start(header)
    console.events([overflow(1)])
    console.events([overflow(2)])
    console.suspend()
    console.rewind(0, 0)
    assert written[-1].strip().startswith("step 2: gradients overflowed")
