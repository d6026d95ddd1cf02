"""Each stage as a Prefect flow of its own: the chain with only this stage selected.

What the stage reads must be in the store already.
"""

from __future__ import annotations

from prefect import Flow, flow
from prefect.states import State

from flows.chain import StageName, run_reported
from flows.execution import Options


def _flow_of(stage: StageName) -> Flow[..., State[None] | None]:
    def run_stage(
        recipe: str,
        force: bool = False,
        set_: tuple[str, ...] = (),
        store: str | None = None,
        workers: int | None = None,
        verify: bool = False,
    ) -> State[None] | None:
        """Run one stage; the results of the stages before it are taken from the store.

        Args:
            recipe: name of a built-in recipe, or the absolute path of a recipe file.
            force: run the stage again although its result exists.
            set_: changes to the recipe, each `key=value` as in `evaluation.seeds=4`.
            store: absolute path of the store; by default the one that the command line uses.
            workers: number of threads and processes; by default all cores.
            verify: compare the hashes of all files before a result is reused, not only their sizes.
        """
        forced = (stage,) if force else ()
        return run_reported(Options(recipe, stage, None, None, forced, tuple(set_), store, workers, verify))

    return flow(name=stage, description=f"Run the stage {stage!r} of a recipe.")(run_stage)


corpus = _flow_of("corpus")
tokenizer = _flow_of("tokenizer")
pack = _flow_of("pack")
pretrain = _flow_of("pretrain")
evaluate = _flow_of("evaluate")
report = _flow_of("report")
