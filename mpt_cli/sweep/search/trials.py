"""The jobs of a search: made one by one, as there is room for them, and their results told to the study."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mpt_cli.errors import ConfigError
from mpt_cli.sweep.child import Work
from mpt_cli.sweep.directory import Ending, SweepDirectory
from mpt_cli.sweep.objective import Objective, choose_objective
from mpt_cli.sweep.plan import Job, Plan, job_name, make_plan
from mpt_cli.sweep.queue import Watch
from mpt_cli.sweep.results import FINISHED, INTERRUPTED, NOT_RUN, STOPPED_EARLY, JobResult, read_job
from mpt_cli.sweep.search.space import Space

if TYPE_CHECKING:
    from mpt_cli.sweep.search.study import Study  # which imports optuna, an extra


@dataclass
class Trials(Watch):
    """`plan` and `facts` are those of sweep.json, which is written again with each new job.

    `template` is a job whose environment and number of GPUs the new ones get.
    """

    sweep: SweepDirectory
    plan: Plan
    facts: dict[str, Any]
    space: Space
    study: "Study"
    template: Job

    def new_jobs(self) -> Iterator[Job]:
        """Until there are as many as wanted, or no combination of values is left, or no new one came up."""
        while self.plan.missing:
            number = len(self.plan.jobs) + 1
            values = self.study.propose(number)
            if values is None:
                if self.study.is_exhausted:
                    self._settle_for(len(self.plan.jobs))
                return
            job = self._job(number, self.space.overrides(values))
            self.plan.jobs.append(job)
            self.sweep.write_plan(self.plan, self.facts)
            yield job

    def ended(self, work: Work, ending: Ending) -> None:
        self.tell(read_job(self.sweep, work.job))

    def catch_up(self) -> None:
        """Tell what became of jobs that ended without anyone to tell it; a proposal that became no job is void."""
        jobs = {job.number: job for job in self.plan.jobs}
        for trial, job in self.study.running_jobs().items():
            if job is None or job not in jobs:
                self.study.tell_failure(trial)
            else:
                self.tell(read_job(self.sweep, jobs[job]))

    def tell(self, result: JobResult) -> None:
        """One that was interrupted is not told: it goes on when the search is resumed."""
        number = result.job.number
        if result.status == FINISHED:
            objective = self._objective(result)
            self.study.tell(number, objective, objective.value(result.summary))
        elif result.status == STOPPED_EARLY:
            self.study.tell_pruned(number)
        elif result.status not in (INTERRUPTED, NOT_RUN):
            self.study.tell_failure(self.study.trial_of(number))

    def _objective(self, result: JobResult) -> Objective:
        """That of the sweep; where none was named, the first usual one that the first job had."""
        search = self.facts["search"]
        if search.get("objective") is None:
            chosen = choose_objective(self.facts["objective"], [result.summary])
            search["objective"] = f"{chosen.name}:{chosen.direction}"
            self.sweep.write_plan(self.plan, self.facts)
        return choose_objective(search["objective"], [])

    def _settle_for(self, trials: int) -> None:
        self.facts["search"]["trials"] = trials
        self.plan = replace(self.plan, trials=trials)
        self.sweep.write_plan(self.plan, self.facts)

    def _job(self, number: int, overrides: dict[str, str]) -> Job:
        """Its configuration is not checked again but by the job itself, which fails where two keys don't agree."""
        words = self.space.words(overrides)
        try:
            own = make_plan(words, is_here=False).jobs[0]
        except ConfigError:
            own = replace(self.template, words=words)
        return replace(own, number=number, name=job_name(number, overrides), overrides=overrides,
                       environment=self.template.environment)  # fmt: skip
