"""Runs a script in a GRASS session: run.py SCRIPT

The session is in a project of its own, without coordinate system unless the
script's first comment asks for one: # grass: EPSG:4326. It is made with the
library and not by the program grass, which says what it does on standard error.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

if not shutil.which("grass"):
    print("GRASS GIS is not installed in this image", file=sys.stderr)
    sys.exit(127)  # as a shell says that a command is not there
python_path = subprocess.run(
    ["grass", "--config", "python_path"], capture_output=True, text=True, check=True
).stdout.strip()
sys.path.insert(0, python_path)

import grass.script as gs


IMPORT = re.compile(
    r"import\s+[A-Za-z_]\w*(\.\w+)*(\s+as\s+\w+)?\s*(,|;|#|$)|from\s+\w+(\.\w+)*\s+import\s"
)


def start():
    """Starts a session without coordinate system, and returns its database."""
    database = tempfile.mkdtemp(prefix="grass", dir="/var/tmp")
    gs.create_project(database, "xy")
    gs.setup.init(database, "xy")
    for name in "PATH", "LD_LIBRARY_PATH":
        # The library leaves an empty entry in front, which means the working
        # directory.
        os.environ[name] = os.environ[name].strip(":")
    # As a session of the program grass has them.
    os.environ["GRASS_VERSION"] = gs.version()["version"]
    os.environ["GRASS_GNUPLOT"] = "gnuplot -persist"
    os.environ["GRASS_PAGER"] = "cat"
    # Percentages without backspaces.
    os.environ["GRASS_MESSAGE_FORMAT"] = "plain"
    return database


def wait():
    """Waits at the gate, if there is one."""
    gate = os.environ.pop("BELLJAR_GATE", None)
    if gate:
        with open(gate, "rb") as fifo:
            fifo.read()


def enter_project(database, lines):
    """Moves the session to the project that a script asks for."""
    number = 2 if lines and lines[0].startswith("#!") else 1
    line = lines[number - 1] if len(lines) >= number else ""
    asked = re.match(r"#\s*grass:\s*(.*?)\s*$", line, re.IGNORECASE)
    if not asked or asked[1].upper() == "XY":
        return
    place = f"{sys.argv[1]}:{number}: # grass: {asked[1]}: "
    code = re.fullmatch(r"EPSG:([0-9]+)", asked[1], re.IGNORECASE)
    if not code:
        sys.exit(place + "want a coordinate system such as EPSG:4326, or XY for none")
    name = "epsg" + code[1]
    made = subprocess.run(
        ["g.proj", "-c", "--quiet", "epsg=" + code[1], "project=" + name], stderr=subprocess.PIPE, text=True
    )
    if made.returncode != 0:
        sys.exit(place + "GRASS finds no coordinate system for this code\n" + made.stderr.strip())
    # The session is what this file says.
    with open(os.environ["GISRC"], "w") as gisrc:
        gisrc.write(f"GISDBASE: {database}\nLOCATION_NAME: {name}\nMAPSET: PERMANENT\n")


def command(script, lines):
    """Tells how to run a script: by its first line, or by an import in it."""
    if lines and lines[0].startswith("#!"):
        return [*lines[0][2:].split(), script]
    for line in lines:
        if "<<" in line:
            break  # what follows may be Python, but the script is not
        if IMPORT.match(line):
            return ["python3", script]
    return ["bash", script]


def main():
    script = sys.argv[1]
    database = start()
    wait()
    with open(script, encoding="utf-8", errors="replace") as file:
        text = file.read()
    lines = text.splitlines()
    enter_project(database, lines)
    if "d.mon" not in text:
        # Without a monitor, display commands draw on one picture. They would
        # also if there were one, so a script that starts one keeps it.
        os.environ["GRASS_RENDER_IMMEDIATE"] = "cairo"
        os.environ["GRASS_RENDER_FILE"] = "/sandbox/output/map.png"
        os.environ["GRASS_RENDER_FILE_READ"] = "TRUE"
    # Python ignores these, and what it executes would too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    argv = command(script, lines)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{script}:1: {argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


main()
