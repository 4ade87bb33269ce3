"""One run of the program on hostile input: what is in its folder before, its arguments and environment, and what it may do."""
import random
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from faults.hostile import raw_bytes, things
from faults.hostile.surfaces import generators_of
from support.kvbound_cli import INCONCLUSIVE, INVALID, MISMATCH, PASS, USAGE, WORLD

# with which the program may end if all of its files can be read
READ = frozenset((PASS, MISMATCH, USAGE, INVALID, INCONCLUSIVE))


@dataclass
class Case:
    """surface      to which the table counts it
    what         was damaged, and how, for messages
    arguments    of the program, or of the script `script`
    files        {name: bytes} in the folder, and things {name: function(path)} in the place of files
    named        of which a refusal names one; none: whatever it says
    codes        with which it may end
    own          files and folders that it may change
    sound        whether its figures are those of undamaged files, if it passes
    """

    surface: str
    what: str
    arguments: tuple
    files: dict
    things: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)
    named: tuple = ()
    codes: frozenset = READ
    own: tuple = ()
    script: str | None = None
    sound: bool = False

    def prints_a_file(self):
        """Whether an output is standard output: what else is printed goes to standard error."""
        return not {"-", "/dev/stdout"}.isdisjoint(self.arguments)


def names_of(arguments, files):
    """Names by which a message may call an input: of the file, of its folder, or as the command was given them."""
    parts = {part for name in files for part in PurePosixPath(name).parts}
    return tuple(parts | {word for word in arguments if word in parts})


def undamaged(surface, files, arguments):
    return Case(surface.name, "nothing", arguments, files, own=surface.own, script=surface.script)


def damaged(draw, name, content, damages):
    """A file's bytes with one of the damages, by default of those of its kind or of bytes, and the damage's name."""
    own = generators_of(name)
    damage = draw.choice(damages or draw.choice((own, own, own, raw_bytes.DAMAGES)))
    try:
        return damage(draw, content), damage.__name__
    # what is no such file, because it was damaged before
    except (ValueError, IndexError, KeyError, OverflowError):
        return raw_bytes.flip(draw, content), "flip"


def case_of(surface, number):
    """The number-th case of a surface, always the same."""
    draw = random.Random(f"{surface.name} {number}")
    files = dict(draw.choice(surface.variants))
    arguments = draw.choice(surface.commands)
    chosen = [name for name in sorted(files) if name.startswith(surface.damaged)]
    case = Case(surface.name, "", arguments, files, named=names_of(arguments, files), own=surface.own, script=surface.script)
    if surface.world:
        case.codes |= {WORLD}
    # whose bounds hold, whatever a trace says
    if arguments[0] in ("replay", "recall", "predict", "evaluate") and "--resume" not in arguments:
        case.codes -= {MISMATCH}
    if draw.random() < 0.05 and not surface.damages:
        name, thing = draw.choice(chosen), draw.choice(things.THINGS)
        del files[name]
        case.things, case.what = {name: thing}, f"{thing.__name__} in the place of {name}"
        case.codes |= {WORLD}
        case.own += ("nowhere",)  # by a link
        case.named += PurePosixPath(name).parts
        return case
    for name in draw.sample(chosen, min(len(chosen), draw.choice((1, 1, 1, 1, 1, 2)))):
        files[name], damage = damaged(draw, name, files[name], surface.damages)
        case.what += f"{damage} of {name} "
    case.sound = surface.figures and not any(word in case.what for word in ("plan", "hashed", "trace"))
    return case
