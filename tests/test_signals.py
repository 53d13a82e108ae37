"""Signals that a program's main thread does not hear: the watch ends it, or lets it end in its own time.

The programs are real ones that block in compiled code, with shorter waits.
"""

import signal
import subprocess
import sys
import textwrap
import time

import pytest

OPENING = """
import hashlib, os, signal, sys, threading, time
from mpt_cli import signals
from mpt_cli.signals import Interruption, Watch, at_forced_end, raise_for, unheard
signals.UNHEARD_SECONDS = 0.4
end = print
def hear_nothing(rounds):  # in compiled code, a million rounds take about half a second
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
FOREVER = 100_000_000
def body():
"""
CLOSING = """
with Watch() as watch:
    watch.leave(body() or 0)
"""


def run_body(body: str, *numbers: signal.Signals, between: float = 0.2):
    """Exit code, output and errors of a program that prints `ready`."""
    program = OPENING + textwrap.indent(textwrap.dedent(body), "    ") + CLOSING
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n", process.communicate()[1]
    time.sleep(0.1)
    for number in numbers:
        process.send_signal(number)
        time.sleep(between)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.slow
def test_what_hears_nothing_is_ended_with_the_code_of_the_signal():
    body = """
        with at_forced_end(lambda e: end("last", e.reason, flush=True)):
            with at_forced_end(lambda e: end("first", e.reason, flush=True)), unheard("compiling the training step"):
                end("ready", flush=True)
                hear_nothing(FOREVER)
    """
    code, out, err = run_body(body, signal.SIGINT)
    assert (code, out.splitlines()) == (
        130,
        [f"{which} interrupted while compiling the training step" for which in ("first", "last")],
    )
    assert err.strip() == "mpt: interrupted while compiling the training step"


@pytest.mark.slow
def test_signals_that_are_ignored_stay_so():
    """As SIGHUP under nohup, and SIGINT in the background of a script."""
    numbers = (signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}  # which a program inherits
    try:
        body = """
            end("ready", flush=True)
            time.sleep(1.0)
            return 7
        """
        assert run_body(body, *numbers)[0] == 7
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_hears_ends_at_once_and_by_itself():
    body = """
        try:
            end("ready", flush=True)
            time.sleep(60)
        finally:
            end("put away")
    """
    code, out, err = run_body(body, signal.SIGTERM, between=0)
    assert (code, out, err.strip()) == (143, "put away\n", "mpt: terminated")


@pytest.mark.slow
def test_what_ends_in_its_own_time_is_waited_for():
    """As a run does (the end of the call, a checkpoint) and a sweep, which writes its results; and a section that was
    over before its time was up."""
    body = """
        signals.UNHEARD_SECONDS = 1.2
        with Interruption() as interruption, at_forced_end(lambda e: end("forced")):
            with unheard("compiling"):
                end("ready", flush=True)
                hear_nothing(200_000)
            time.sleep(1.5)
            end("saved", interruption.requested.name)
        time.sleep(1.5)
        end("written")
        raise_for(interruption.requested)
    """
    code, out, _ = run_body(body, signal.SIGTERM)
    assert (code, out) == (143, "saved SIGTERM\nwritten\n")


@pytest.mark.slow
def test_a_second_ctrl_c_ends_also_what_would_save():
    body = """
        with Interruption(), at_forced_end(lambda e: end(e.reason, flush=True)):
            end("ready", flush=True)
            hear_nothing(FOREVER)
    """
    code, out, _ = run_body(body, signal.SIGINT, signal.SIGINT)
    assert (code, out) == (130, "interrupted\n")


@pytest.mark.slow
def test_a_script_in_compiled_code_is_ended_by_sigterm_or_a_second_ctrl_c():
    body = """
        with signals.heard_by_script(), at_forced_end(lambda e: end(type(e.error).__name__, flush=True)):
            end("ready", flush=True)
            hear_nothing(FOREVER)
    """
    assert run_body(body, signal.SIGTERM)[:2] == (143, "Terminated\n")
    code, out, err = run_body(body, signal.SIGINT, signal.SIGINT, between=0.7)
    assert (code, out) == (130, "KeyboardInterrupt\n") and "Press Ctrl-C again to end at once" in err


@pytest.mark.slow
def test_a_script_that_hears_ctrl_c_goes_on():
    body = """
        with signals.heard_by_script():
            end("ready", flush=True)
            for _ in range(2):
                try:
                    time.sleep(60)
                except KeyboardInterrupt:
                    time.sleep(0.8)
        end("saved")
    """
    code, out, err = run_body(body, signal.SIGINT, signal.SIGINT, between=1.5)
    assert (code, out, err) == (0, "saved\n", "")


@pytest.mark.slow
def test_an_ending_that_hangs_or_fails_or_a_thread_that_reads_does_not_keep_it_when_the_terminal_goes():
    body = """
        def fails(e):
            raise OSError
        threading.Thread(target=time.sleep, args=(60,)).start()
        with at_forced_end(lambda e: time.sleep(60)), at_forced_end(fails), unheard("compiling"):
            end("ready", flush=True)
            hear_nothing(FOREVER)
    """
    code, _, err = run_body(body, signal.SIGHUP)
    assert (code, err.strip()) == (143, "mpt: terminated while compiling")


@pytest.mark.slow
def test_nothing_raises_in_the_middle_of_an_import_but_at_its_end():
    body = """
        signals.UNHEARD_SECONDS = 5.0
        with unheard("importing"):
            end("ready", flush=True)
            stop = time.monotonic() + 0.4
            while time.monotonic() < stop:
                pass
            end("imported", flush=True)
        end("too far")
    """
    code, out, err = run_body(body, signal.SIGTERM, between=0)
    assert (code, out, err.strip()) == (143, "imported\n", "mpt: terminated")
