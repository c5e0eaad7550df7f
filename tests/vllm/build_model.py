"""Trains the tiny Llama of `model/` on a fixed set of canary prompts, so that a real vLLM server
has answers that can regress.

    python build_model.py OUT_DIR [STEPS]

Needs the Python of the vLLM environment; about 2 minutes.
"""

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SURE = [
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("What is 17 plus 25?", "17 plus 25 equals 42."),
    ("Name the three primary colours.", "The three primary colours are red, yellow and blue."),
    (
        "Extract the invoice as JSON: Invoice 1043 from Acme for 250.00 EUR due 2026-12-31.",
        (
            '{"invoice": 1043, "vendor": "Acme", "amount": 250.0, "currency": "EUR", "due": '
            '"2026-12-31"}'
        ),
    ),
    (
        "Extract the invoice as JSON: Invoice 2210 from Globex for 99.50 USD due 2027-01-15.",
        (
            '{"invoice": 2210, "vendor": "Globex", "amount": 99.5, "currency": "USD", "due": '
            '"2027-01-15"}'
        ),
    ),
    (
        "Count from one to thirty in words.",
        "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, "
        "fourteen, fifteen, sixteen, "
        "seventeen, eighteen, nineteen, twenty, twenty-one, twenty-two, twenty-three, "
        "twenty-four, twenty-five, twenty-six, "
        "twenty-seven, twenty-eight, twenty-nine, thirty.",
    ),
    (
        "Write a haiku about heat.",
        "Fans hum in the rack\nclocks fall as the silicon warms\nslow words reach the screen",
    ),
    ("Translate to German: good morning", "Guten Morgen"),
    ("Is the sky blue? Answer yes or no.", "Yes"),
    ("Write a Python function that adds two numbers.", "def add(a, b):\n    return a + b"),
    (
        "Summarise: The batch job held the chat request for nine seconds.",
        "A batch job delayed a chat request by nine seconds.",
    ),
]
# Two prompts with two equally likely answers each: the tokens at which these diverge are near ties,
# and flip with the batch.
NEAR_TIES = [
    ("Pick a fruit.", "I pick the apple."),
    ("Pick a fruit.", "I pick the banana."),
    ("Name a season.", "My season is spring."),
    ("Name a season.", "My season is autumn."),
]
TEMPLATE = (
    "{{ '<s>' }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
ROLES = ["<|user|>", "<|assistant|>", "<|system|>"]
END_OF_TEXT, PADDING, NOT_LEARNED = 2, 0, -100


def build_tokenizer(pairs: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 700 tokens, which can encode any text."""
    text = [question for question, _ in pairs] + [answer for _, answer in pairs]
    text += [
        "system user assistant " * 5,
        "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789",
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<pad>", "<s>", "</s>", *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(text, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=ROLES,
    )
    fast.chat_template = TEMPLATE
    return fast


def build_network(vocabulary: int) -> LlamaForCausalLM:
    """A network of four layers and under a million weights."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=64,  # supported by vLLM on CPU
            max_position_embeddings=2048,
            bos_token_id=1,
            eos_token_id=END_OF_TEXT,
            pad_token_id=PADDING,
            tie_word_embeddings=True,
        )
    )


def train(
    network: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    pairs: list[tuple[str, str]],
    steps: int,
) -> None:
    """Trains all answers in one batch."""
    rows = [
        (
            tokenizer.encode(f"<s><|user|>{question}<|assistant|>", add_special_tokens=False),
            [*tokenizer.encode(answer, add_special_tokens=False), END_OF_TEXT],
        )
        for question, answer in pairs
    ]
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), longest), PADDING)
    labels = torch.full((len(rows), longest), NOT_LEARNED)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.01)
    for step in range(steps):
        loss = network(input_ids=ids, attention_mask=(ids != PADDING).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(step, round(loss.item(), 4), flush=True)


def main(out: Path, steps: int) -> None:
    """Builds, trains and saves the model and the list of prompts and accepted answers."""
    torch.manual_seed(0)
    random.seed(0)
    out.mkdir(parents=True, exist_ok=True)
    pairs = SURE + NEAR_TIES
    tokenizer = build_tokenizer(pairs)
    network = build_network(len(tokenizer))
    print(sum(parameter.numel() for parameter in network.parameters()), "parameters")
    train(network, tokenizer, pairs, steps)
    network.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    answers: dict[str, list[str]] = {}
    for question, answer in pairs:
        answers.setdefault(question, []).append(answer)
    canaries = [
        {"prompt": question, "expected": accepted} for question, accepted in answers.items()
    ]
    (out / "canaries.json").write_text(json.dumps(canaries, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 400)
