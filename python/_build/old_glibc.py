"""Links for an older glibc than the machine's: the wheel runs on systems of glibc 2.28 and later.

A program asks for each of libc's functions at a version, and the linker takes the newest of the
libc it links with. So here stand-ins are linked in its place: empty functions with the same names,
each at its newest version that glibc 2.28 had (the machine's libc keeps all of these for old
programs). A function that came later is in no stand-in: its use fails at link.

The stand-ins are named as the libraries of glibc 2.28 were, where threads, dlopen and others were
libraries of their own. Needs gcc or clang and binutils. On machines without glibc there is nothing
to do: prepare() returns None.
"""
import collections
import os
import pathlib
import re
import shutil
import subprocess

#: The promise of a wheel with the tag manylinux_2_28.
NEWEST = (2, 28)
_SYMBOL = re.compile(r"^\s*\d+: ([0-9a-f]+)\s+(\w+)\s+(\w+)\s+(GLOBAL|WEAK|UNIQUE)\s+DEFAULT\s+(\w+)\s+(\w+)(@@?)GLIBC_([\d.]+)$")
#: Which library had a function before it got a version after 2.28, most by moving into libc in
#: 2.34; by the beginning of its name.
_ONCE_IN = (("__libc_start_main", "c"), ("dl", "dl"), ("pthread_", "pthread"), ("__pthread_", "pthread"), ("sem_", "pthread"), ("shm_", "rt"), ("mq_", "rt"),
            ("aio_", "rt"), ("lio_", "rt"), ("timer_", "rt"))
_SONAMES = {"c": "libc.so.6", "m": "libm.so.6", "dl": "libdl.so.2", "pthread": "libpthread.so.0", "rt": "librt.so.1"}

#: Before 2.33 these were not in libc: each program brought its own, from libc_nonshared.a, which
#: called what libc had. The number is that of the structure's layout.
_CALLED_BEFORE_2_33 = ("__xstat", "__fxstat", "__lxstat", "__fxstatat")
_BEFORE_2_33 = """
#include <sys/stat.h>
#if defined(__x86_64__)
#define LAYOUT 1
#else
#define LAYOUT 0
#endif
#define HIDDEN __attribute__((visibility("hidden")))
extern int __xstat(int, const char*, struct stat*);
extern int __fxstat(int, int, struct stat*);
extern int __lxstat(int, const char*, struct stat*);
extern int __fxstatat(int, int, const char*, struct stat*, int);
HIDDEN int stat(const char* restrict path, struct stat* restrict facts) { return __xstat(LAYOUT, path, facts); }
HIDDEN int fstat(int fd, struct stat* facts) { return __fxstat(LAYOUT, fd, facts); }
HIDDEN int lstat(const char* restrict path, struct stat* restrict facts) { return __lxstat(LAYOUT, path, facts); }
HIDDEN int fstatat(int folder, const char* restrict path, struct stat* restrict facts, int flags) {
  return __fxstatat(LAYOUT, folder, path, facts, flags);
}
"""


def parse_version(text):
    return tuple(int(part) for part in text.split("."))


def dynamic_symbols(path, defined=False):
    """(name, version, type, size in bytes, address, binding, "@@" for what is linked by default) of
    each of glibc's symbols that the file defines, or else wants."""
    text = subprocess.run(["readelf", "-W", "--dyn-syms", str(path)], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        # "name@GLIBC_2.34 (5)" in files that want it
        found = _SYMBOL.match(re.sub(r" \(\d+\)$", "", line))
        if found and (found.group(5) != "UND") == defined:
            address, size, kind, binding, _, name, default, version = found.groups()
            yield name, parse_version(version), kind, int(size, 0), int(address, 16), binding, default


def needed(path):
    """The newest version of glibc that a file asks for, and the libraries it names."""
    text = subprocess.run(["readelf", "-W", "-d", "-V", str(path)], check=True, capture_output=True, text=True).stdout
    versions = [parse_version(v) for v in re.findall(r"Name: GLIBC_([\d.]+)", text)]
    return max(versions, default=(0,)), re.findall(r"\(NEEDED\).*\[(.*)\]", text)


def _file_of(compiler, name):
    found = subprocess.run([*compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
    return found if os.path.isabs(found) else None


def _stand_ins(library, own):
    """{name of the stand-in: [(symbol, version, type, size, address, binding)]} for one library of
    the machine."""
    versions, offered = collections.defaultdict(list), set(_CALLED_BEFORE_2_33)
    for name, version, kind, size, address, binding, default in dynamic_symbols(library, defined=True):
        if kind in ("FUNC", "IFUNC", "OBJECT"):
            versions[name].append((version, kind, size, address, binding))
        if default == "@@":
            offered.add(name)
    result = collections.defaultdict(list)
    for name, known in sorted(versions.items()):
        old = max((entry for entry in known if entry[0] <= NEWEST), default=None)
        if old is None or name not in offered:
            # kept for old programs alone, as pthread_atfork, which each program brings itself
            continue
        where = own
        if own == "c" and max(known)[0] > NEWEST:
            where = next((place for start, place in _ONCE_IN if name.startswith(start)), None)
        if where:  # before 2.30 a function is looked for in the named library alone
            result[where].append((name, *old))
    return result


def _build_stand_in(compiler, folder, name, symbols):
    nodes = sorted({symbol[1] for symbol in symbols})
    lines = []
    # Variables at one address (__environ, and environ, which is weak) stay at one address: a
    # program that has its own copy then has one for all names.
    symbols.sort(key=lambda symbol: (symbol[2] == "OBJECT", symbol[4]))
    for i, (symbol, version, kind, size, address, binding) in enumerate(symbols):
        data = kind == "OBJECT"
        own = f"accrt_stand_in_{i}"
        last = i + 1 == len(symbols) or not data or symbols[i + 1][4] != address
        lines += [".data" if data else ".text", f".{'weak' if data and binding == 'WEAK' else 'globl'} {own}",
                  f".type {own}, %{'object' if data else 'function'}", f"{own}:", f".size {own}, {size if data else 4}", f".symver {own}, {symbol}@@GLIBC_{'.'.join(map(str, version))}"]
        lines += [f".skip {max(size, 1) if data else 4}"] if last else []
    (folder / f"{name}.s").write_text("\n".join(lines) + "\n.section .note.GNU-stack,\"\",%progbits\n")
    hidden = ["{ local: accrt_stand_in_*; }"] + ["{ }"] * (len(nodes) - 1)
    (folder / f"{name}.map").write_text("".join(f"GLIBC_{'.'.join(map(str, node))} {what};\n" for node, what in zip(nodes, hidden)))
    target = folder / _SONAMES[name]
    subprocess.run([*compiler, "-shared", "-nostdlib", f"-Wl,-soname,{_SONAMES[name]}", f"-Wl,--version-script={folder / (name + '.map')}",
                    "-o", str(target), str(folder / f"{name}.s")], check=True)
    return target


def prepare(folder, compiler):
    """Makes the stand-ins in the folder. Returns the linker's option that takes them, None where
    they are not wanted or cannot be made."""
    folder = pathlib.Path(folder)
    libc = _file_of(compiler, "libc.so.6")
    if not libc or not shutil.which("readelf") or not any(dynamic_symbols(libc, defined=True)):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    stand_ins = collections.defaultdict(list)
    for library in ("c", "m"):
        for where, symbols in _stand_ins(_file_of(compiler, _SONAMES[library]), library).items():
            stand_ins[where] += symbols
    built = {name: _build_stand_in(compiler, folder, name, symbols) for name, symbols in stand_ins.items()}
    (folder / "before_2_33.c").write_text(_BEFORE_2_33)
    own = folder / "before_2_33.o"
    subprocess.run([*compiler, "-O2", "-fPIC", "-c", "-o", str(own), str(folder / "before_2_33.c")], check=True)
    archive = folder / "libbefore_2_33.a"
    archive.unlink(missing_ok=True)
    subprocess.run(["ar", "rc", str(archive), str(own)], check=True)
    parts = [str(built.pop("c")), str(archive), _file_of(compiler, "libc_nonshared.a")]
    loader = re.findall(r"AS_NEEDED \( (\S*ld-linux\S*) \)", pathlib.Path(_file_of(compiler, "libc.so")).read_text())
    as_needed = [str(path) for name, path in sorted(built.items()) if name != "m"] + loader
    (folder / "libc.so").write_text(f"GROUP ( {' '.join(filter(None, parts))} AS_NEEDED ( {' '.join(as_needed)} ) )\n")
    for name, path in built.items():
        link = folder / f"lib{name}.so"
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
    return f"-L{folder}"
