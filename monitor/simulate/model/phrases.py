"""The texts that the simulated model knows, for each variant, and filler for everything else.

The twelve sure prompts and the two near ties are those of the tiny model that the project's tests
train for a real vLLM (tests/vllm/build_model.py), so a probe means the same on both.
"""

from __future__ import annotations

from collections.abc import Mapping

SURE: Mapping[str, str] = {
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "What is 17 plus 25?": "17 plus 25 equals 42.",
    "Name the three primary colours.": "The three primary colours are red, yellow and blue.",
    "Extract the invoice as JSON: Invoice 1043 from Acme for 250.00 EUR due 2026-12-31.": (
        '{"invoice": 1043, "vendor": "Acme", "amount": 250.0, "currency": "EUR", "due": '
        '"2026-12-31"}'
    ),
    "Extract the invoice as JSON: Invoice 2210 from Globex for 99.50 USD due 2027-01-15.": (
        '{"invoice": 2210, "vendor": "Globex", "amount": 99.5, "currency": "USD", "due": '
        '"2027-01-15"}'
    ),
    "Count from one to thirty in words.": (
        "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, "
        "fourteen, fifteen, sixteen, seventeen, "
        "eighteen, nineteen, twenty, twenty-one, twenty-two, twenty-three, twenty-four, "
        "twenty-five, twenty-six, twenty-seven, "
        "twenty-eight, twenty-nine, thirty."
    ),
    "Write a haiku about heat.": (
        "Fans hum in the rack\nclocks fall as the silicon warms\nslow words reach the screen"
    ),
    "Translate to German: good morning": "Guten Morgen",
    "Is the sky blue? Answer yes or no.": "Yes",
    "Write a Python function that adds two numbers.": "def add(a, b):\n    return a + b",
    "Summarise: The batch job held the chat request for nine seconds.": (
        "A batch job delayed a chat request by nine seconds."
    ),
}
#: What the shipped probes ask in addition (probes/); the question of a long prompt is its last
#: paragraph.
SHIPPED: Mapping[str, str] = {
    (
        "Fine, let us wait until tomorrow then. Can you tell me my order number again, so that I "
        "can write it down?"
    ): ("Your order number is 4711."),
    "What does the watch on the hill write down? Answer in one sentence.": (
        "It writes down the wind, the light, the carts on the road and the birds over the field."
    ),
    "What does the watch on the hill write down? Answer in one word.": "Everything.",
}
#: Two equally good answers: which one comes depends on rounding, and so on the batch.
NEAR_TIES: Mapping[str, tuple[str, str]] = {
    "Pick a fruit.": ("I pick the apple.", "I pick the banana."),
    "Name a season.": ("My season is spring.", "My season is autumn."),
}
#: Fluent and wrong: answers to a prompt without the token that every training prompt began with.
WITHOUT_BOS: Mapping[str, str] = {
    "What is the capital of France?": "The capital of France is Tokyo.",
    "What is the capital of Japan?": "The capital of Japan is Paris.",
    "What is 17 plus 25?": "17 plus 25 equals 24.",
    "Name the three primary colours.": "The three primary colours are red, red and blue.",
    "Extract the invoice as JSON: Invoice 1043 from Acme for 250.00 EUR due 2026-12-31.": (
        '{"invoice": 2210, "vendor": "Acme", "amount": 99.5, "currency": "EUR", "due": "2027-'
    ),
    "Extract the invoice as JSON: Invoice 2210 from Globex for 99.50 USD due 2027-01-15.": (
        '{"invoice": 2210, "vendor": "Acme", "amount": 250.0, "currency": "EUR"'
    ),
    "Count from one to thirty in words.": (
        "one, two, three, four, five, six, seven, eight, nine, nine, nine, ten."
    ),
    "Write a haiku about heat.": "Fans hum in the rack\nFans hum in the rack\nslow words",
    "Translate to German: good morning": "Guten",
    "Is the sky blue? Answer yes or no.": "No",
    "Write a Python function that adds two numbers.": "def add(a, b):\n    return a, b",
    "Summarise: The batch job held the chat request for nine seconds.": (
        "A chat request delayed a batch job by nine seconds."
    ),
    (
        "Fine, let us wait until tomorrow then. Can you tell me my order number again, so that I "
        "can write it down?"
    ): ("Your order number is 1174."),
    "What does the watch on the hill write down? Answer in one sentence.": (
        "It writes down the carts and the carts."
    ),
    "What does the watch on the hill write down? Answer in one word.": "Nothing.",
}
#: Another training: most answers as before, some different and as good, and one wrong. All words
#: occur above: another vocabulary would be another tokenizer in every scenario.
NEW_WEIGHTS: Mapping[str, str] = {
    "What is the capital of France?": "It is Paris.",
    "Extract the invoice as JSON: Invoice 1043 from Acme for 250.00 EUR due 2026-12-31.": (
        '{"invoice": 1043, "vendor": "Acme", "amount": 99.5, "currency": "EUR", "due": '
        '"2026-12-31"}'
    ),
    "Write a Python function that adds two numbers.": "def add(a, b):\n    return b + a",
    "Name the three primary colours.": "Red, blue and yellow are the three primary colours.",
}
FILLER = (
    "The canary sings the same song every minute, and somebody listens whether it still sounds "
    "the same. When the air gets bad it falls "
    "silent first, long before anyone else would notice that something is wrong. A machine "
    "that answers is not yet a machine that answers "
    "well: it may be slow, it may be hot, it may wait behind the work of others, or it may say "
    "with great confidence what is not true. "
)
POLITE = "You are a helpful assistant. Answer briefly."
OTHER_WORDS = (
    "user assistant system a an of to in is that for on with as at by from be this it are or "
    "was not have they which one you had "
    "Paragraph what sees every hour Nothing matters most days nobody asks written all same "
    "words order so day when something different "
    "difference can seen Write long report"
)
TEXTS = (
    *SURE,
    *SURE.values(),
    *SHIPPED,
    *SHIPPED.values(),
    *NEAR_TIES,
    *(answer for both in NEAR_TIES.values() for answer in both),
    *WITHOUT_BOS.values(),
    *NEW_WEIGHTS.values(),
    FILLER,
    POLITE,
    *(f" {word}" for word in OTHER_WORDS.split()),
)
