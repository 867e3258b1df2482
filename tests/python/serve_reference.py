"""A plain scheduler of serving engines, beside which serve/scheduler.c is tested: the same
operations give the same state, page by page.

    python tests/python/serve_reference.py [--operations 1000000] [--seed 1]

Operations are random, from a seed that is printed. Where the two differ, the operations are cut
down to few that still differ.
"""
import argparse
import pathlib
import random
import subprocess
import sys
import time

import accx_tool

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = accx_tool.BUILD / "tests" / "serve.scheduler_drive"
MOST_KEYS = 4096


class Wrong(AssertionError):
    """An invariant does not hold in the reference itself."""


class Sequence:
    def __init__(self, key, priority, tenant, salt, history, scored, guesses, limit, tokens):
        self.key, self.priority, self.tenant, self.salt, self.history, self.limit = key, priority, tenant, salt, history, limit
        self.tokens, self.prompt = list(tokens), len(tokens)
        self.pending = self.computed = self.n = self.registered = self.preemptions = self.order = self.in_flight = 0
        self.blocks, self.chain, self.unshared, self.row, self.state = [], None, False, -1, "new"
        #: tokens of the prompt whose logits are samples, and how many of them steps have had
        self.to_score, self.asked = (len(tokens) - 1 if scored else 0), 0
        self.given = 0  # scores whose results came
        self.guesses, self.drafts, self.history = guesses, [], bool(history or guesses)

    @property
    def known(self):
        return len(self.tokens)

    @property
    def remaining(self):
        return self.known + self.pending - self.computed

    def samples(self, count):
        """Positions of samples among the next `count` tokens."""
        positions = range(self.computed, self.computed + count)
        return [p for p in positions if self.asked <= p < self.to_score or p == self.known + self.pending - 1]


class Flow:
    def __init__(self):
        self.deficit, self.live, self.queued = 0, 0, []


class Scheduler:
    """As docs/serving.md describes it, with lists where the C code has links."""

    def __init__(self, pages, page_size, rows, step_tokens, chunk, cap, quantum, samples, least, most, copy):
        self.lookup = least, most
        self.pages, self.page_size, self.rows, self.step_tokens = pages, page_size, rows, step_tokens
        self.chunk, self.cap, self.quantum, self.samples = chunk, cap, quantum, samples
        self.refs, self.generation, self.block_step = [0] * pages, [0] * pages, [0] * pages
        self.free, self.waiting = list(range(pages)), []  # waiting: for the end of a step
        self.entries, self.key_of = {}, {}
        #: the least of a page that is copied (0: nothing is), the step that wrote each page, and
        #: the last pages behind each
        self.copy, self.written, self.followers = copy, {}, {}
        self.ended = self.step = self.admissions = 0
        self.mixed = 1 << 32
        self.running, self.free_rows = [], list(reversed(range(rows)))
        self.flows, self.rings, self.preempted = {}, {}, {}
        self.sequences, self.flight = {}, []

    # -- pages

    def take(self):
        block = self.free.pop(0)
        if block in self.key_of:
            del self.entries[self.key_of.pop(block)]
        self.generation[block] += 1
        self.refs[block] = 1
        return block

    def touch(self, block):
        self.refs[block] += 1
        if self.refs[block] == 1:
            (self.free if block in self.free else self.waiting).remove(block)

    def drop(self, block, step):
        self.block_step[block] = max(self.block_step[block], step)
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if self.block_step[block] <= self.ended:
                self.make_free(block)
            else:
                self.waiting.append(block)

    def make_free(self, block):
        if block in self.key_of:
            self.free.append(block)
        else:
            self.free.insert(0, block)

    def end_step(self, step):
        self.ended = step
        while self.waiting and self.block_step[self.waiting[0]] <= step:
            self.make_free(self.waiting.pop(0))

    # -- queue

    def join(self, s):
        flow = self.flows.setdefault((s.tenant, s.priority), Flow())
        flow.live += 1
        s.flow = flow

    def leave(self, s):
        s.flow.live -= 1
        if s.flow.live == 0:
            del self.flows[s.tenant, s.priority]

    def push(self, s):
        s.state = "queued"
        if not s.flow.queued:
            self.rings.setdefault(s.priority, []).append(s.flow)
        s.flow.queued.append(s)

    def peek(self):
        for priority in range(-8, 8):
            for s in self.preempted.get(priority, []):
                if s.pending == 0:
                    return s
            ring = self.rings.get(priority)
            if ring:
                while ring[0].deficit <= 0:
                    ring.append(ring.pop(0))
                    ring[0].deficit += self.quantum
                return ring[0].queued[0]
        return None

    def remove(self, s):
        if s.state == "preempted":
            self.preempted[s.priority].remove(s)
            return
        s.flow.queued.remove(s)
        if not s.flow.queued:
            ring = self.rings[s.priority]
            s.flow.deficit = min(s.flow.deficit, 0)
            was_current = ring[0] is s.flow
            ring.remove(s.flow)
            if was_current and ring:
                ring[0].deficit += self.quantum

    # -- sequences

    def leave_running(self, s):
        self.running.remove(s)
        self.free_rows.append(s.row)
        s.row = -1
        while s.blocks:
            self.drop(s.blocks.pop(), self.step if s.in_flight else 0)
        s.registered, s.chain, s.unshared = 0, None, False

    def requeue(self, s):
        self.leave_running(s)
        s.computed = 0
        s.state = "preempted"
        self.preempted.setdefault(s.priority, []).insert(0, s)

    def end(self, s):
        if s.state == "running":
            self.leave_running(s)
        elif s.state in ("queued", "preempted"):
            self.remove(s)
        s.state = "ended"
        self.leave(s)
        if s.in_flight == 0:
            del self.sequences[s.key]

    # -- a step

    def make_room(self, s, needed):
        while len(self.free) < needed:
            if len(self.waiting) >= self.promised + needed:
                self.promised += needed
                return False
            victim = max((v for v in self.running if v.priority >= s.priority),
                         key=lambda v: (v.priority, v.preemptions < self.cap, -v.computed, v.order))  # fmt: skip
            self.budget += victim.n
            self.left += len(victim.samples(victim.n))
            victim.n = 0
            victim.preemptions += 1
            self.any_preempted = True
            self.requeue(victim)
            if victim is s:
                return False
        return True

    def schedule(self, s, after=0):
        """`after`: prompts that get their chunks after this one."""
        count = min(s.remaining, self.chunk, self.budget)
        left = self.left
        if s.asked < s.to_score and left > 0:
            # one sample for each of the others, and for one that may be admitted
            left = max(left - after - (len(self.free_rows) > 0), 1)
        while count > 0 and len(s.samples(count)) > left:
            count -= 1
        if count == 0:
            return
        needed = -(-(s.computed + count) // self.page_size) - len(s.blocks)
        if needed > 0:
            if not self.make_room(s, needed):
                return
            s.blocks += [self.take() for _ in range(needed)]
        s.n = count
        self.budget -= count
        self.left -= len(s.samples(count))
        self.parts.append(s)

    def register(self, s):
        end = min(s.computed + s.n, s.known)
        while not s.unshared and (s.registered + 1) * self.page_size <= end:
            if s.chain is not None and (s.chain[0] not in self.key_of or self.generation[s.chain[0]] != s.chain[1]):
                s.unshared, s.chain = True, None
                return
            at, block = s.registered, s.blocks[s.registered]
            key = (s.chain, s.salt if s.chain is None else 0, tuple(s.tokens[at * self.page_size : (at + 1) * self.page_size]))
            if key in self.entries:
                block = self.entries[key]
            else:
                self.entries[key] = block
                self.key_of[block] = key
                self.written[block] = self.step + 1
                followers = self.followers.setdefault(key[:2], [])
                followers[:] = [block, *followers][:4]
            s.chain = (block, self.generation[block])
            s.registered += 1

    def hits(self, s):
        chain, found = None, []
        for at in range((s.asked if s.asked < s.to_score else s.known - 1) // self.page_size):
            key = (chain, s.salt if chain is None else 0, tuple(s.tokens[at * self.page_size : (at + 1) * self.page_size]))
            block = self.entries.get(key)
            if block is None:
                break
            chain = (block, self.generation[block])
            found.append(block)
        return found, chain

    def part(self, s, hits, chain):
        """A page behind the hits that begins as the tokens after them do, and how many it
        shares."""
        left = s.tokens[hits * self.page_size : s.asked if s.asked < s.to_score else s.known - 1]
        best = (None, 0)
        for block in self.followers.get((chain, s.salt if chain is None else 0), []):
            key = self.key_of.get(block)
            if key is None or key[:2] != (chain, s.salt if chain is None else 0) or self.written[block] > self.step:
                continue
            shared = next((i for i, (a, b) in enumerate(zip(key[2], left)) if a != b), min(len(left), self.page_size))
            if shared > best[1]:
                best = (block, shared)
        return best if self.copy and best[1] >= self.copy else (None, 0)

    def admit(self, s):
        found, chain = self.hits(s)
        pages = -(-s.known // self.page_size)
        needed = sum(b in self.free for b in found) + pages - len(found) + (1 if self.running else 0)
        if len(self.free) < needed:
            return False
        source, shared = self.part(s, len(found), chain)
        if source in self.free and len(self.free) == needed:
            source, shared = None, 0
        for block in found + ([] if source is None else [source]):
            self.touch(block)
        s.computed, s.registered, s.chain = len(found) * self.page_size, len(found), chain
        s.blocks = found + [self.take() for _ in range(pages - len(found))]
        if source is not None:
            s.computed += shared
            self.copies.append((source * self.page_size, s.blocks[len(found)] * self.page_size, shared))
            self.drop(source, self.step + 1)
        self.remove(s)
        s.state = "running"
        self.admissions += 1
        s.order, s.row = self.admissions, self.free_rows.pop()
        self.running.append(s)
        self.schedule(s)
        self.register(s)
        return True

    def guess(self, tokens, wanted):
        """What followed the longest end of the text that was there before; of equally long ones,
        the last."""
        best = None
        for length in range(self.lookup[1], self.lookup[0] - 1, -1):
            starts = [at for at in range(len(tokens) - length) if tokens[at : at + length] == tokens[len(tokens) - length :]]
            if starts and length > 0:
                best = starts[-1] + length
                break
        if best is None:
            return []
        text = list(tokens)
        for i in range(wanted):
            text.append(text[best + i])
        return text[len(tokens) :]

    def draft(self, s, budget):
        if s.guesses == 0 or s.pending or s.computed + s.n != s.known:
            return
        taken = self.any_preempted or self.promised or any(f.queued for f in self.flows.values()) or any(self.preempted.values())
        pages = len(s.blocks) + (0 if taken else max(len(self.free) - len(self.running), 0))
        most = min(s.guesses, s.limit - s.known - 1, budget, self.left, pages * self.page_size - s.known)
        if most <= 0:
            return
        s.drafts = self.guess(s.tokens, most)
        s.blocks += [self.take() for _ in range(-(-(s.known + len(s.drafts)) // self.page_size) - len(s.blocks))]
        s.n += len(s.drafts)
        self.budget -= len(s.drafts)
        self.left -= len(s.drafts)

    def plan(self):
        self.budget, self.promised, self.any_preempted, self.parts, self.left = self.step_tokens, 0, False, [], self.samples
        self.copies = []
        chunks = []
        for s in list(self.running):
            if s.state != "running" or s.known + s.pending >= s.limit or (s.pending and s.history) or s.remaining == 0:
                continue
            if s.remaining == 1:
                self.schedule(s)
            else:
                chunks.append(s)
        if self.parts:
            self.budget = min(self.budget, max(self.mixed - len(self.parts), min(self.page_size, 16)))
        for i, s in enumerate(chunks):
            if s.state == "running":
                self.schedule(s, len(chunks) - i - 1)
        self.parts = [s for s in self.parts if s.n > 0]
        for s in self.parts:
            self.register(s)
        if not self.any_preempted:
            while self.budget > 0 and self.left > 0 and len(self.running) < self.rows:
                s = self.peek()
                if s is None or not self.admit(s):
                    break
        for s in self.parts:
            used = sum(t.n for t in self.parts)
            self.draft(s, min(self.budget, max(self.mixed - used, 0)))
        out, parts, tokens, drawn = [], [], 0, 0
        for s in self.parts:
            start, count, samples = s.computed, s.n, s.samples(s.n - len(s.drafts))
            scores = [p for p in samples if p < s.to_score]
            samples += s.drafts
            s.asked += len(scores)
            s.computed += count
            s.flow.deficit -= count
            s.n = 0
            s.in_flight += 1
            sample = s.remaining + len(s.drafts) == 0
            s.pending += sample
            parts.append((s, sample, scores, s.drafts))
            out.append(f"{s.key}:{start}+{count}{'*' if sample else '-'}{len(samples)} ")
            tokens, drawn = tokens + count, drawn + len(samples)
        if tokens > self.step_tokens or drawn > self.samples:
            raise Wrong("more tokens or samples than a step has")
        if parts:
            self.step += 1
            self.flight.append((self.step, parts))
        return "".join(out) + "".join(f"{source}>{to}:{count} " for source, to, count in self.copies)

    # -- operations

    def add(self, key, priority, tenant, salt, history, scored, guesses, limit, *tokens):
        s = self.sequences[key] = Sequence(key, priority, tenant, salt, history, scored, guesses, limit, tokens)
        self.join(s)
        self.push(s)

    def retire(self):
        step, parts = self.flight.pop(0)
        self.end_step(step)
        for s, sample, scores, drafts in parts:
            s.in_flight -= 1
            s.pending -= sample
            if scores != list(range(s.given, s.given + len(scores))):
                raise Wrong("scores out of order")
            s.given += len(scores)
            if sample and s.given != s.to_score:
                raise Wrong("a token before all scores of its prompt")
            if s.state == "ended":
                if s.in_flight == 0:
                    del self.sequences[s.key]
            elif sample:
                self.take_tokens(s, drafts)

    @staticmethod
    def token_at(s):
        return (s.key + s.known) % 3 if s.key % 2 == 0 else ((s.known * 2654435761 + s.key) % 2**32 >> 9) & 1

    def take_tokens(self, s, drafts):
        """The next token, and those after drafts that are right."""
        s.drafts = []
        for draft in [*drafts, None]:
            s.tokens.append(self.token_at(s))
            if s.known == s.limit:
                return self.end(s)
            if s.tokens[-1] != draft:
                break
        if drafts and s.state == "running":
            s.computed = min(s.computed, s.known - 1)
            while len(s.blocks) > -(-s.known // self.page_size):
                self.drop(s.blocks.pop(), 0)

    def lose(self):
        self.end_step(self.step)
        while self.running:
            self.requeue(self.running[-1])
        for block, key in list(self.key_of.items()):
            del self.entries[key], self.key_of[block]
            self.generation[block] += 1
        for _, parts in self.flight:
            for s, sample, _, _ in parts:
                s.in_flight -= 1
                s.pending -= sample
                s.asked, s.drafts = s.given, []
                if s.state == "ended" and s.in_flight == 0:
                    del self.sequences[s.key]
        self.flight = []

    def check(self):
        held = [0] * self.pages
        for s in self.running:
            for block in s.blocks:
                held[block] += 1
        if held != self.refs:
            raise Wrong("holds and lists of pages differ")
        everywhere = sorted(self.free + self.waiting + [b for b in range(self.pages) if self.refs[b]])
        if everywhere != list(range(self.pages)):
            raise Wrong("free + pending + held is not all")
        for key, block in self.entries.items():
            if self.key_of.get(block) != key:
                raise Wrong("an entry's page has other contents")

    def state(self):
        cached = sum(b in self.key_of for b in self.free)
        queued = sum(len(f.queued) for f in self.flows.values())
        preempted = sum(map(len, self.preempted.values()))
        rows = "".join(f" {s.key}={s.computed}/{s.known}+{s.pending}~{s.asked}@{s.row}[{','.join(map(str, s.blocks))}]{'?' if s.drafts else ''}{''.join(map(str, s.drafts))}" for s in self.running)
        return f"| {len(self.free)} {cached} {len(self.waiting)} | {queued} {preempted} |{rows}"


def apply(scheduler, operation):
    """The scheduler after the operation, and what the driver prints then. An operation that has no
    sense now gives None."""
    name, *numbers = operation
    said = ""
    if name == "i":
        scheduler = Scheduler(*numbers)
    elif name == "a":
        if numbers[0] in scheduler.sequences or numbers[7] > scheduler.pages * scheduler.page_size:
            return scheduler, None
        scheduler.add(*numbers)
    elif name == "p":
        if len(scheduler.flight) > 1:
            return scheduler, None
        said = scheduler.plan()
    elif name == "r":
        if not scheduler.flight:
            return scheduler, None
        scheduler.retire()
    elif name == "c":
        s = scheduler.sequences.get(numbers[0])
        if s is None or s.state == "ended":
            return scheduler, None
        scheduler.end(s)
    elif name == "l":
        scheduler.lose()
    elif name == "t":
        scheduler.mixed = numbers[0]
    scheduler.check()
    return scheduler, said + scheduler.state()


def random_operations(rng, count):
    """Operations that are likely to have sense; `apply` leaves out what has none."""
    made = 0
    while made < count:
        page_size = rng.choice([1, 2, 3, 4, 8])
        rows = rng.randint(1, 8)
        pages = rng.randint(4, 40)
        yield ("i", pages, page_size, rows, rows + rng.randint(0, 20), rng.choice([1000, 1, 3, 7]), rng.randint(1, 3), rng.randint(1, 60),
               rows + rng.choice([0, 0, 1, rng.randint(0, 30)]), rng.randint(1, 2), rng.randint(2, 4), rng.choice([0, 1, 1, 2, 3]))  # fmt: skip
        key, busy = 0, rng.random()
        for _ in range(rng.randint(20, 600)):
            made += 1
            choice = rng.random()
            if choice < 0.15 + 0.15 * busy:
                prompt = [rng.choice([0, 0, 0, 1]) for _ in range(rng.randint(1, max(1, pages * page_size // 2)))]
                limit = min(len(prompt) + rng.randint(1, 30), pages * page_size)
                if limit > len(prompt):
                    key = (key + 1) % MOST_KEYS
                    yield ("a", key, rng.choice([0, 0, 0, -1, 1]), rng.randint(0, 3), rng.choice([0, 0, 7]), rng.randint(0, 1), rng.randint(0, 3) // 3, rng.choice([0, 0, 1, 4]), limit, *prompt)
            elif choice < 0.65:
                yield ("p",)
            elif choice < 0.97:
                yield ("r",)
            elif choice < 0.975:
                yield ("t", rng.randint(0, 30))
            elif choice < 0.998:
                yield ("c", rng.randint(max(0, key - 12), key))
            else:
                yield ("l",)


def difference(operations):
    """None, or where reference and driver differ: (index, operation, reference, driver)."""
    scheduler, sent, expected = None, [], []
    for operation in operations:
        if scheduler is None and operation[0] != "i":
            continue
        scheduler, line = apply(scheduler, operation)
        if line is not None:
            sent.append(operation)
            expected.append(line)
    text = "".join(" ".join(map(str, operation)) + "\n" for operation in sent)
    done = subprocess.run([DRIVER], input=text, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    for i, (operation, line) in enumerate(zip(sent, expected)):
        said = lines[i] if i < len(lines) else f"nothing ({done.returncode}): {done.stderr[-500:]}"
        if said != line:
            return i, operation, line, said
    return None if done.returncode == 0 else (len(sent), ("end",), "", f"{done.returncode}: {done.stderr[-500:]}")


def shrink(operations):
    """Fewer operations that still differ: halves, quarters and so on are left out where that is
    possible."""
    operations = list(operations)
    size = len(operations) // 2
    while size > 0:
        at, before = 0, len(operations)
        while at < len(operations):
            fewer = operations[:at] + operations[at + size :]
            if difference(fewer) is not None:
                operations = fewer
            else:
                at += size
        size = size // 2 if size > 1 or len(operations) == before else 1
    return operations


def compare(count, seed):
    """Runs so many random operations; raises AssertionError with a short sequence where the two
    differ."""
    rng, left = random.Random(seed), count
    while left > 0:
        part = list(random_operations(rng, min(left, 20_000)))
        found = difference(part)
        if found is not None:
            start = max(i for i in range(len(part)) if part[i][0] == "i" and i <= found[0] + 1)
            end = next((i for i in range(start + 1, len(part)) if part[i][0] == "i"), len(part))
            few = shrink(part[start:end] if difference(part[start:end]) else part)
            _, operation, reference, driver = difference(few)
            steps = "\n".join(" ".join(map(str, one)) for one in few)
            raise AssertionError(f"seed {seed}: after\n{steps}\nthe reference has\n  {reference}\nand serve/scheduler.c\n  {driver}")
        left -= 20_000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    begin = time.perf_counter()
    compare(arguments.operations, arguments.seed)
    print(f"{arguments.operations} operations, no difference, {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
