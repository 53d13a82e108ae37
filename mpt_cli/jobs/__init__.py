"""The one place that starts processes: commands, a queue of them, their shares of cores and GPUs, time-outs and
signals; on this machine, through submitit or through Ray, behind one interface.

`queue` runs commands, `launchers` says where, an executor starts each. Nothing here knows what a sweep is.
"""
