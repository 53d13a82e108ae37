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


def run_body(body: str, *numbers: signal.Signals, between: float = 0.2) -> tuple[int, str, str, float]:
    """Exit code, output, errors and seconds from the first signal to the end of a program that prints `ready`."""
    program = OPENING + textwrap.indent(textwrap.dedent(body), "    ") + CLOSING
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n", process.communicate()[1]
    time.sleep(0.1)
    started = time.monotonic()
    for number in numbers:
        process.send_signal(number)
        time.sleep(between)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err, time.monotonic() - started


@pytest.mark.slow
def test_what_hears_nothing_is_ended_with_the_code_of_the_signal():
    body = """
        with at_forced_end(lambda e: end("last", e.reason, flush=True)):
            with at_forced_end(lambda e: end("first", e.reason, flush=True)), unheard("compiling the training step"):
                end("ready", flush=True)
                hear_nothing(FOREVER)
    """
    code, out, err, seconds = run_body(body, signal.SIGINT)
    assert (code, out.splitlines()) == (130, [f"{which} interrupted while compiling the training step"
                                              for which in ("first", "last")])  # fmt: skip
    assert err.strip() == "mpt: interrupted while compiling the training step"
    assert seconds > 0.4


@pytest.mark.slow
def test_a_terminal_that_goes_away_is_a_sigterm_also_where_nothing_is_heard():
    body = """
        with unheard("compiling"):
            end("ready", flush=True)
            hear_nothing(FOREVER)
    """
    code, _, err, _ = run_body(body, signal.SIGHUP)
    assert (code, err.strip()) == (143, "mpt: terminated while compiling")


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
    code, out, err, seconds = run_body(body, signal.SIGTERM, between=0)
    assert (code, out, err.strip()) == (143, "put away\n", "mpt: terminated") and seconds < 5


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
    code, out, _, seconds = run_body(body, signal.SIGTERM)
    assert (code, out) == (143, "saved SIGTERM\nwritten\n") and seconds > 2.9


@pytest.mark.slow
def test_a_second_ctrl_c_ends_also_what_would_save():
    body = """
        with Interruption(), at_forced_end(lambda e: end(e.reason, flush=True)):
            end("ready", flush=True)
            hear_nothing(FOREVER)
    """
    code, out, _, seconds = run_body(body, signal.SIGINT, signal.SIGINT)
    assert (code, out) == (130, "interrupted\n") and seconds < 5


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_what_ends_others_to_itself():
    """As the queue of a sweep, which kills its jobs then."""
    body = """
        try:
            with Interruption():
                end("ready", flush=True)
                while True:
                    time.sleep(0.05)
        except KeyboardInterrupt:
            with Interruption():
                time.sleep(1.0)
            end("killed them")
            raise
    """
    assert run_body(body, signal.SIGINT, signal.SIGINT)[:3] == (130, "killed them\n", "\nmpt: interrupted\n")


@pytest.mark.slow
def test_an_ending_that_hangs_or_fails_does_not_keep_it():
    body = """
        def fails(e):
            raise OSError
        with at_forced_end(lambda e: time.sleep(60)), at_forced_end(fails), unheard("compiling"):
            end("ready", flush=True)
            hear_nothing(FOREVER)
    """
    code, _, _, seconds = run_body(body, signal.SIGTERM)
    assert code == 143 and seconds < 10


@pytest.mark.slow
def test_the_end_does_not_wait_for_a_thread_that_still_reads():
    body = """
        threading.Thread(target=time.sleep, args=(60,)).start()
        end("ready", flush=True)
        time.sleep(60)
    """
    code, _, _, seconds = run_body(body, signal.SIGTERM)
    assert code == 143 and seconds < 10


@pytest.mark.slow
def test_signals_of_a_forked_process_are_its_own():
    body = """
        begun, begins = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(begins, b"+")
            time.sleep(60)
            os._exit(0)
        os.read(begun, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        time.sleep(0.6)
        end("ready", flush=True)
        return 7
    """
    assert run_body(body)[0] == 7


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
    code, out, err, _ = run_body(body, signal.SIGTERM, between=0)
    assert (code, out, err.strip()) == (143, "imported\n", "mpt: terminated")


@pytest.mark.slow
def test_a_signal_whose_exception_a_callback_loses_ends_the_program_without_a_traceback():
    """Python throws away what a callback of its garbage collector raises, and prints it."""
    body = """
        import gc
        struck = []
        def callback(phase, _):
            if not struck:
                struck.append(phase)
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.3)  # another thread may be the one that the system gives it to
        end("ready", flush=True)
        time.sleep(0.3)  # so that it is read by itself
        gc.callbacks.append(callback)
        gc.collect()
        end("went on", flush=True)
        while True:
            time.sleep(0.01)
    """
    assert run_body(body)[:3] == (143, "went on\n", "\nmpt: terminated\n")
