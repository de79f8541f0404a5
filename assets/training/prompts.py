"""Write held-out prompts for tests: `python prompts.py RUN/tokenizer.json prompts.json`, a JSON array, one prompt a line."""
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer

import data

# How many prompts of how many tokens: five are far beyond top-k, some are dialogues.
LENGTHS = [(6, 8), (12, 8), (24, 10), (60, 8), (120, 5), (400, 5)]
DIALOGUES = 6


def main(tokenizer, out):
    tok, rng = Tokenizer.from_file(tokenizer), random.Random(7)
    _, held_out = data.split()
    chapters = [(n, v, tok.encode(data.chapter_text(n, v)).ids) for n, v in held_out.items()]
    prompts = []
    for length, count in LENGTHS:
        fitting = [(v, ids) for _, v, ids in chapters if len(ids) > length + 100]
        for verses, ids in rng.sample(fitting, count):
            if length >= 60:  # from the chapter's name on
                text = tok.decode(ids[: length + 1])
            else:
                text = tok.decode(tok.encode(rng.choice([v for v in verses if len(v) > 5 * length])).ids[: length + 1])
            prompts.append(text[: text.rindex(" ")])  # whole words
    for name, verses, _ in rng.sample(chapters, DIALOGUES):
        text = data.dialogue(name, verses, rng)
        prompts.append(text[: text.index(data.ASSISTANT) + len(data.ASSISTANT)])
    assert len(prompts) == 50
    out.write_text("[\n" + ",\n".join(json.dumps(p) for p in prompts) + "\n]\n")
    lengths = sorted(len(tok.encode(p).ids) for p in prompts)
    print(f"{len(prompts)} prompts of {lengths[0]} to {lengths[-1]} tokens, {sum(n > 300 for n in lengths)} above 300")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
