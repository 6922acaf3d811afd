"""What the field calls verbs that are called otherwise here."""

VERBS = {
    "resume": "archwright train --resume RUN",
    "run": "archwright train MODEL",
    "fine-tune": "archwright train RUN data.text=FILE",
    "finetune": "archwright train RUN data.text=FILE",
    "ablate": "archwright compare MODEL :KEY=VALUE",
    "sample": "archwright generate RUN",
    "evaluate": "archwright eval RUN",
    "test": "archwright eval RUN",
    "convert": "archwright export RUN FOLDER",
    "cost": "archwright plan MODEL",
    "estimate": "archwright plan MODEL",
    "info": "archwright show MODEL",
    "describe": "archwright show MODEL",
    "plot": "archwright report RUN",
    "models": "archwright list models",
    "runs": "archwright list runs",
    "studies": "archwright list studies",
    "choices": "archwright list choices",
    "init": "archwright new KIND FILE",
}
"""Commands, by the verbs that others have for them."""
