"""Models of runs in EleutherAI's lm-evaluation-harness (`lm_eval`)."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archwright.generation.reader import Reader, can_pad
from archwright.generation.sampling import Sampler, Sampling, sample_rows
from archwright.hf.import_export import open_any
from archwright.hf.pretrained import as_pretrained
from archwright.runs.load import Run
from archwright.spec.errors import UserError, nearest

try:
    from lm_eval import simple_evaluate
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table
except ImportError:
    raise UserError(
        "lm_eval is not installed; install it with: pip install 'archwright[eval]'"
    ) from None


@register_model("archwright")
class ArchwrightLM(HFLM):  # type: ignore[misc]
    """A run, or a Hugging Face folder, as a language model of lm_eval.

    Requests are encoded, truncated, batched and scored by lm_eval's class for transformers. Only the forward pass and
    generation are archwright's, so results differ from `--model hf` on an exported folder by rounding only.

        import archwright.training.harness  # registers the model
        lm_eval.simple_evaluate("archwright", "run=runs/demo", tasks=["lambada_openai"])

    Args:
        run: A run, or a Hugging Face folder.
        device: As in `open_run`.
        dtype: As in `open_run`.
        settings: Further settings of `lm_eval.models.huggingface.HFLM`, such as `add_bos_token`.

    Raises:
        UserError: the model is not a causal decoder, or `open_any` rejects the folder.
    """

    def __init__(
        self,
        run: Run,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int | str = 8,
        **settings: Any,
    ) -> None:
        from transformers import AutoTokenizer

        opened = open_any(run, device=device, dtype=dtype)
        spec = opened.model.spec
        assert spec.vocab_size != "auto"
        exported = opened.tokenizer.exported(spec.vocab_size, spec.context_length, has_source=False)
        with tempfile.TemporaryDirectory() as folder:
            exported.save(Path(folder))
            tokenizer = AutoTokenizer.from_pretrained(folder)
        end, begin = opened.tokenizer.end_of_text, opened.tokenizer.begin_of_text
        self._stops = (opened.tokenizer.stop_ids - {begin}) | {end}
        model = as_pretrained(opened.model)
        super().__init__(
            model, tokenizer=tokenizer, backend="causal", batch_size=int(batch_size), **settings
        )

    @torch.inference_mode()
    def _model_generate(
        self, context: Tensor, max_length: int, stop: list[str], **settings: Any
    ) -> Tensor:
        """Continue texts [batch, length] with archwright's cache; each row ends with a stop string or end-of-text."""
        temperature = float(settings.get("temperature") or 0.0)
        drawing: dict[str, Any] = {"temperature": 0.0}
        if settings.get("do_sample", temperature > 0):
            drawing = {name: settings[name] for name in ("top_k", "top_p") if settings.get(name)}
            drawing["temperature"] = temperature or 1.0
        model, room = self.model.model, max_length - context.shape[1]
        real = settings["attention_mask"].bool()
        prompts = [tokens[kept] for tokens, kept in zip(context, real, strict=True)]
        texts: list[list[int]] = [[] for _ in prompts]

        def taker(text: list[int]) -> Callable[[int], bool]:
            def take(token: int) -> bool:
                if token in self._stops:
                    return False
                text.append(token)
                return len(text) < room and not any(s in self.tokenizer.decode(text) for s in stop)

            return take

        size = len(prompts) if can_pad(model) else 1
        for i in range(0, len(prompts) if room else 0, size):
            reader, batch, several = Reader(model), texts[i : i + size], prompts[i : i + size]
            samplers = [Sampler(Sampling(**drawing), 0, prompt) for prompt in several]
            sample_rows(reader, reader.read_prompts(several), samplers, [*map(taker, batch)])
        # [batch, length + longest text]
        return torch.nn.utils.rnn.pad_sequence(
            [torch.cat((c, c.new_tensor(t))) for c, t in zip(context, texts, strict=True)],
            batch_first=True,
            padding_value=self.tokenizer.pad_token_id,
        )


def evaluate_tasks(
    run: Run,
    tasks: Sequence[str],
    *,
    include_path: str | None = None,
    limit: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluate a run's model on tasks of lm_eval, and return the results of `lm_eval.simple_evaluate`.

    Args:
        tasks: Names of tasks or groups.
        include_path: Folder with further task files.
        limit: Examples per task. Default: all.
        device: As in `open_run`.
        dtype: As in `open_run`.
        settings: Of `ArchwrightLM`.

    Raises:
        UserError: an unknown task, a missing folder, a task whose data cannot be loaded, or as `ArchwrightLM`.
    """
    if include_path is not None and not Path(include_path).is_dir():
        raise UserError(f'include_path: no folder "{include_path}"; expected one with task files')
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_path=include_path)
    for name in tasks:
        if not manager.match_tasks([name]):
            hint = nearest(name, manager.all_tasks)
            raise UserError(f'tasks: lm_eval has no task "{name}".{hint}')
    model = ArchwrightLM(run, device=device, dtype=dtype, **settings)
    try:
        results = simple_evaluate(model, tasks=[*tasks], task_manager=manager, limit=limit)
    except (OSError, ValueError, AssertionError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"tasks: {', '.join(tasks)}: {lines[0]}") from error
    assert results is not None
    return dict(results)


def table(results: dict[str, Any]) -> str:
    """Return lm_eval's table of results."""
    return str(make_table(results)).strip()
