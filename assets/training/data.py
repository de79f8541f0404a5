"""The text: the King James Bible, one chapter to a document, partly also as short dialogues; and its tokenizer.

`python data.py OUT` reads the verses from the `bible` command (Debian packages bible-kjv, bible-kjv-text; the text is in
the public domain) and writes tokenizer.json.
"""
import pathlib
import random
import re
import subprocess
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 1024
END, SYSTEM, USER, ASSISTANT, TURN = "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
CONTROL = [END, SYSTEM, USER, ASSISTANT, TURN]
CHAT_TEMPLATE = (
    "{%- for m in messages -%}<|{{ m.role }}|>{{ m.content }}<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
BOOKS = """Ge=Genesis Exo=Exodus Lev=Leviticus Num=Numbers Deu=Deuteronomy Josh=Joshua Jdgs=Judges Ruth=Ruth 1Sm=1_Samuel
2Sm=2_Samuel 1Ki=1_Kings 2Ki=2_Kings 1Chr=1_Chronicles 2Chr=2_Chronicles Ezra=Ezra Neh=Nehemiah Est=Esther Job=Job
Psa=Psalm Prv=Proverbs Eccl=Ecclesiastes SSol=Song_of_Solomon Isa=Isaiah Jer=Jeremiah Lam=Lamentations Eze=Ezekiel
Dan=Daniel Hos=Hosea Joel=Joel Amos=Amos Obad=Obadiah Jonah=Jonah Mic=Micah Nahum=Nahum Hab=Habakkuk Zep=Zephaniah
Hag=Haggai Zec=Zechariah Mal=Malachi Mat=Matthew Mark=Mark Luke=Luke John=John Acts=Acts Rom=Romans 1Cor=1_Corinthians
2Cor=2_Corinthians Gal=Galatians Eph=Ephesians Phi=Philippians Col=Colossians 1Th=1_Thessalonians 2Th=2_Thessalonians
1Tim=1_Timothy 2Tim=2_Timothy Titus=Titus Phmn=Philemon Heb=Hebrews Jas=James 1Pet=1_Peter 2Pet=2_Peter 1Jn=1_John
2Jn=2_John 3Jn=3_John Jude=Jude Rev=Revelation"""
BOOK = {k: v.replace("_", " ") for k, v in (pair.split("=") for pair in BOOKS.split())}
HELD_OUT_EVERY = 33  # about 3 % of the chapters


def chapters():
    """{"Genesis 1": [verse, …]} in the order of the book."""
    text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        book, chapter, verse = re.match(r"(\d?[A-Za-z]+)(\d+):\d+ (.*)", line).groups()
        found.setdefault(f"{BOOK[book]} {chapter}", []).append(" ".join(verse.split()))
    return found


def chapter_text(name, verses):
    return name + "\n" + "\n".join(verses)


def dialogue(name, verses, rng):
    """The user begins a passage, or names it; the assistant goes on to the end of a verse."""
    i = rng.randrange(len(verses))
    count = rng.choice([1, 1, 2, 3])
    passage = "\n".join(verses[i : i + count])
    if rng.random() < 0.15:
        ask, answer = f"{name}:{i + 1}", passage
    else:
        words = passage.split(" ")
        cut = rng.randint(min(3, len(words) - 1), max(min(12, len(words) - 1), 1))
        ask, answer = " ".join(words[:cut]), " ".join(words[cut:])
    head = SYSTEM + rng.choice(["Continue the verse.", "Speak as the Scripture."]) + TURN if rng.random() < 0.25 else ""
    return f"{head}{USER}{ask}{TURN}{ASSISTANT}{answer}{TURN}"


def documents(held_in, rng, dialogues=0.13):
    """One epoch: every chapter once, and dialogues that make up about the given part of the text, shuffled."""
    texts = [chapter_text(n, v) for n, v in held_in.items()]
    wanted, have = dialogues / (1 - dialogues) * sum(map(len, texts)), 0
    names = list(held_in)
    while have < wanted:
        # Two or three exchanges in a document, so that a conversation has a past.
        turns = [dialogue(n, held_in[n], rng) for n in rng.choices(names, k=rng.choice([1, 1, 2, 3]))]
        text = "".join(turns[:1] + [t[t.index(USER) :] for t in turns[1:]])
        texts.append(text)
        have += len(text)
    rng.shuffle(texts)
    return texts


def train_tokenizer(texts):
    """Byte-level BPE with GPT-2's pre-tokenizer, which llama.cpp knows as `gpt-2`."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(CONTROL), initial_alphabet=alphabet, show_progress=False)
    tok.train_from_iterator(texts, trainer)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    assert tok.get_vocab_size() == VOCAB
    return tok


def split():
    everything = chapters()
    names = list(everything)
    held_out = {n: everything[n] for n in names[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]}
    return {n: v for n, v in everything.items() if n not in held_out}, held_out


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    held_in, held_out = split()
    tok = train_tokenizer([chapter_text(n, v) for n, v in held_in.items()])
    tok.save(str(out / "tokenizer.json"))
    epoch = documents(held_in, random.Random(0))
    tokens = sum(len(e.ids) + 1 for e in tok.encode_batch(epoch))
    validation = sum(len(tok.encode(chapter_text(n, v)).ids) for n, v in held_out.items())
    print(f"{len(held_in)} chapters to learn, {len(held_out)} held out ({validation} tokens), {tokens} tokens an epoch")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
