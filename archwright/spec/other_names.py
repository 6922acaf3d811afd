"""Common names of keys, choices and values in other programs, for hints."""

KEYS = {
    **dict.fromkeys(("d_model", "n_embd", "hidden_size", "embed_dim", "width"), "dim"),
    **dict.fromkeys(("layers", "n_layers", "n_layer", "num_hidden_layers", "depth"), "num_layers"),
    **dict.fromkeys(("heads", "n_heads", "n_head", "num_attention_heads"), "attention.num_heads"),
    **dict.fromkeys(("kv_heads", "n_kv_heads", "num_key_value_heads"), "attention.num_kv_heads"),
    **dict.fromkeys(("d_ff", "ffn_dim", "intermediate_size", "mlp_dim"), "feedforward.hidden_dim"),
    **dict.fromkeys(("activation", "act", "hidden_act"), "feedforward.kind"),
    **dict.fromkeys(
        ("seq_len", "sequence_length", "block_size", "max_seq_len", "n_ctx", "context"),
        "context_length",
    ),
    **dict.fromkeys(("vocab", "n_vocab"), "vocab_size"),
    **dict.fromkeys(("rope_theta", "rope_base"), "position.theta"),
    **dict.fromkeys(("learning_rate", "max_lr"), "optimizer.lr"),
    **dict.fromkeys(
        ("steps", "max_steps", "num_steps", "iters", "max_iters", "epochs", "time", "minutes"),
        "budget",
    ),
    **dict.fromkeys(("batch", "bs", "micro_batch_size"), "batch_size"),
    **dict.fromkeys(("grad_clip", "clip", "gradient_clipping"), "max_grad_norm"),
    **dict.fromkeys(("warmup_steps", "warmup_iters"), "schedule.warmup"),
    **dict.fromkeys(("data", "dataset", "corpus", "train_file"), "data.text"),
    **dict.fromkeys(("eval_every", "eval_interval", "eval_steps"), "evaluate.every"),
    **dict.fromkeys(
        ("scale.dp", "scale.ddp", "scale.data", "scale.dp_replicate"), "scale.replicate"
    ),
    **dict.fromkeys(("scale.fsdp", "scale.zero", "scale.dp_shard"), "scale.shard"),
    **dict.fromkeys(("scale.tp", "tensor_parallel", "tensor_parallel_size"), "scale.tensor"),
    **dict.fromkeys(("scale.cp", "context_parallel", "context_parallel_size"), "scale.context"),
    **dict.fromkeys(("scale.pp", "pipeline_parallel", "pipeline_parallel_size"), "scale.pipeline"),
    **dict.fromkeys(("scale.ep", "expert_parallel", "expert_parallel_size"), "scale.expert"),
    "gradient_accumulation_steps": "grad_accum_steps",
    "dtype": "machine.precision",
}
"""Keys by their names elsewhere; keys of a model without `model.`."""

CHOICES = {
    **dict.fromkeys(
        (
            *("gqa", "mqa", "mha", "grouped-query attention", "multi-query attention"),
            "multi-head attention",
        ),
        "attention.num_kv_heads",
    ),
    **dict.fromkeys(("mla", "latent attention", "multi-head latent attention"), "attention.latent"),
    **dict.fromkeys(("head dimension", "head size", "head width"), "attention.head_dim"),
    **dict.fromkeys(("lsh", "locality-sensitive hashing"), "attention.lsh"),
    **dict.fromkeys(("nope", "no position"), "position.none"),
    "t5 bias": "position.t5",
    "rotary": "position.rope",
    "sine": "position.sinusoidal",
    "normalization": "norm",
    "epsilon": "norm.eps",
    "layernorm": "norm.layer",
    "rmsnorm": "norm.rms",
    **dict.fromkeys(("pre-norm", "prenorm", "serial"), "residual.pre"),
    **dict.fromkeys(("post-norm", "postnorm"), "residual.post"),
    **dict.fromkeys(("sandwich-norm", "double norm"), "residual.sandwich"),
    **dict.fromkeys(("sliding window", "sliding window attention", "swa"), "mask.window"),
    **dict.fromkeys(("ffn", "mlp"), "feedforward"),
    "ffn ratio": "feedforward.ratio",
    "gated linear unit": "feedforward.glu",
    **dict.fromkeys(("moe", "mixture of experts"), "feedforward.experts"),
    **dict.fromkeys(("mamba", "mamba-1", "s6"), "recurrence.selective"),
    **dict.fromkeys(("griffin", "rglru", "lru"), "recurrence.rg_lru"),
    "swish": "feedforward.silu",
    "qk-norm": "attention.qk_norm",
    **dict.fromkeys(("tying", "weight tying"), "head.tied"),
    "z-loss": "z_loss",
    "weight decay": "weight_decay",
    "learning rate": "lr",
    **dict.fromkeys(
        ("soft-cap", "soft-capping", "logit soft-cap", "logit soft-capping"), "attention.softcap"
    ),
    "attention sinks": "attention.sinks",
    **dict.fromkeys(("biases", "no bias", "no biases"), "attention.bias"),
    **dict.fromkeys(("vocabulary", "vocabulary size"), "vocab_size"),
    "clipping": "max_grad_norm",
    "xavier": "init.glorot",
    "mup": "init.mup",
    "adam": "optimizer.adamw",
    "stochastic gradient descent": "optimizer.sgd",
    "mlm": "objective.masked_tokens",
    "nsp": "objective.segments",
}
"""Kinds and options by common names, including options that are not a kind."""

OPTIONS = dict.fromkeys(("gpus", "num-gpus", "ngpus", "nproc-per-node"), "--devices")
"""Options of commands, by their names elsewhere."""

GONE = {
    "procedure": "gone in this version; leave it out",
    "tune_baseline": "gone; give batch_size=N for all, and values of optimizer.weight_decay as variants",
    "equivalence_margin": 'gone; give margin, such as "1% of the loss" or "10%" (of compute)',
}
"""Options of studies that earlier versions had, and their replacements."""

VALUES = {
    "gpu": "cuda",
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "flash": "sdpa",
}
"""Values of options, by their names elsewhere."""
