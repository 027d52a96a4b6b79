"""Programs that try to do harm, and what the model reads then.

Each prints ESCAPED where it gets what it wants. `{...}` are facts about this machine, see test_hostile_programs.py.
"""

C = "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\n"
ENDED = "took longer"
FAILED = "Error: exit code 1"

NETWORK = {
    "tcp to this machine": (
        "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)\nprint('ESCAPED')",
        "ConnectionRefusedError",
    ),
    "tcp to the world": (
        "import socket\nsocket.create_connection(('1.1.1.1', 53), 1)\nprint('ESCAPED')",
        "unreachable",
    ),
    "udp": (
        "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.sendto(b'x', ('8.8.8.8', 53))\nprint('ESCAPED')",
        "unreachable",
    ),
    "dns": ("import socket\nsocket.getaddrinfo('example.com', 80)\nprint('ESCAPED')", "gaierror"),
    "raw socket": (
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)\nprint('ESCAPED')",
        "PermissionError",
    ),
    "packet socket": ("import socket\nsocket.socket(socket.AF_PACKET)\nprint('ESCAPED')", "PermissionError"),
    "the machine of this machine": (
        "import socket\nfor family in (40, 16, 17, 38, 30):\n    try:\n"
        "        socket.socket(family, socket.SOCK_SEQPACKET if family == 30 else socket.SOCK_STREAM)\n"
        "        print('ESCAPED')\n    except OSError as error: print(error.errno)",
        "1\n1\n1\n1\n1",
    ),
    "pairs of other sockets": (
        f"{C}x = (ctypes.c_int * 2)()\nprint('ESCAPED' if c.socketpair(30, 5, 0, x) == 0 else ctypes.get_errno())",
        "1",
    ),
    "abstract socket of this machine": (
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0{mark}')\nprint('ESCAPED')",
        "ConnectionRefusedError",
    ),
}

TOO_MUCH = {
    "fork bomb": ("import os\nwhile True:\n    os.fork()", "BlockingIOError"),
    "fork bomb that goes on": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        ENDED,
    ),
    "thread bomb": (
        "import threading, time\nfor i in range(10**4):\n"
        "    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\nprint('ESCAPED')",
        "can't start new thread",
    ),
    "memory": ("x = bytearray(1 << 33)\nprint('ESCAPED')", "MemoryError"),
    "memory bit by bit": ("x = []\nwhile True:\n    x.append(bytearray(1 << 24))", "MemoryError"),
    "memory in files without a name": ("import os\nos.memfd_create('x')\nprint('ESCAPED')", "PermissionError"),
    "memory that outlives a process": (
        f"{C}print('ESCAPED' if c.shmget(0, 1 << 20, 0o1600) >= 0 else os.strerror(ctypes.get_errno()))",
        "Operation not permitted",
    ),
    "disk": (
        "for i in range(10**4):\n    open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))\nprint('ESCAPED')",
        "No space left",
    ),
    "disk that is memory": (
        "for i in range(10**4):\n    open(f'/dev/shm/{i}', 'wb').write(bytes(1 << 20))\nprint('ESCAPED')",
        "No space left",
    ),
    "a huge file": ("with open('/tmp/x', 'wb') as f:\n    while True: f.write(bytes(1 << 20))", "OSError"),
    "a huge sparse file": ("open('/tmp/x', 'wb').truncate(1 << 40)\nprint('ESCAPED')", "File too large"),
    "a core file": ("import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (1, 1))\nprint('ESCAPED')", FAILED),
    "open files": ("x = [open('/dev/null') for _ in range(10**6)]\nprint('ESCAPED')", "Too many open files"),
    "raising its own limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nprint('ESCAPED')",
        "not allowed to raise maximum limit",
    ),
    "a million files": (
        "import os\nos.fork(); os.fork()\nfor i in range(10**6):\n"
        "    os.close(os.open(f'/tmp/{os.getpid()}-{i}', os.O_CREAT))\nprint('ESCAPED')",
        ENDED,
    ),
    "watching files": (
        f"{C}x = [c.inotify_init() for _ in range(999)]\nprint('ESCAPED' if x[-1] >= 0 else 'no')",
        "no",
    ),
    "being the last to go when memory is short": (
        "print(open('/proc/self/oom_score_adj').read())\n"
        "open('/proc/self/oom_score_adj', 'w').write('0')\nprint('ESCAPED')",
        "Read-only file system",
    ),
    "endless output": ("while True:\n    print('x' * 4096, end='')", "printed too much"),
    "huge output": ("print('x' * 10**7)", "printed too much"),
    "a flood of errors": ("import sys\nwhile True:\n    sys.stderr.write('x' * 4096)", "printed too much"),
    "output that is no text": ("import os\nwhile True: os.write(1, b'\\xff\\x00' * 999)", "printed too much"),
}

TOO_LONG = {
    "endless loop": ("while True:\n    pass", ENDED),
    "a loop in C": ("10 ** 10 ** 10", ENDED),
    "sleep": ("import time\ntime.sleep(3600)", ENDED),
    "ignored signals": (
        "import signal\nfor s in set(signal.Signals) - {9, 19}:\n"
        "    signal.signal(s, signal.SIG_IGN)\nwhile True:\n    pass",
        ENDED,
    ),
    "stopping itself": ("import os\nos.kill(os.getpid(), 19)", ENDED),
    "closing its output": ("import os, time\nos.close(1)\nos.close(2)\ntime.sleep(3600)", ENDED),
    "a daemon": (
        "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', '{mark}'])\n"
        "os._exit(0)",
        "no output",
    ),
    "a daemon that holds the output": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('first is done')",
        "first is done",
    ),
}

READING = {
    "secrets in the environment": (
        "import os\nprint('ESCAPED' if 'SANDBOX_TEST_SECRET' in os.environ else sorted(os.environ))",
        "['HOME', 'LANG', 'PATH', 'PWD']",
    ),
    "the environment of others": (
        "import glob\nfor p in glob.glob('/proc/*/environ'):\n    try:\n"
        "        if 'SANDBOX_TEST_SECRET' in open(p).read(): print('ESCAPED')\n    except OSError: pass\nprint('end')",
        "end",
    ),
    "the environment of the first process": ("open('/proc/1/environ')\nprint('ESCAPED')", "FileNotFoundError"),
    "processes of others": (
        "import os\nx = [p for p in os.listdir('/proc') if p.isdigit()]\nprint('ESCAPED' if len(x) > 3 else 'few')",
        "few",
    ),
    "home folders": (
        "import os\nx = [p for p in ('/root', '/home') if os.path.exists(p) and not {python!r}.startswith(p)]\n"
        "print('ESCAPED' if x else 'none')",
        "none",
    ),
    "what there is": (
        "import os\nprint('ESCAPED' if {'etc', 'var', 'run', 'sys', 'srv'} & set(os.listdir('/')) else 'little')",
        "little",
    ),
    "passwords": ("print(open('/etc/shadow').read())\nprint('ESCAPED')", "FileNotFoundError"),
    "this repository": ("print(open({repository!r} + '/setup.py').read())\nprint('ESCAPED')", "FileNotFoundError"),
    "files of others": ("print(open('{outside}').read())\nprint('ESCAPED')", "FileNotFoundError"),
    "memory of the first process": ("open('/proc/1/mem', 'r+b')\nprint('ESCAPED')", "FileNotFoundError"),
    "memory of the first process by number": (
        f"{C}b = ctypes.create_string_buffer(16)\nv = (ctypes.c_size_t * 2)(ctypes.addressof(b), 0)\n"
        "c.process_vm_readv(1, v, 1, v, 1, 0)\nprint('ESCAPED' if ctypes.get_errno() != 1 else 'no')",
        "no",
    ),
    "the root of the first process": ("import os\nos.listdir('/proc/1/root')\nprint('ESCAPED')", "FileNotFoundError"),
    "the kernel's log": (
        f"{C}b = ctypes.create_string_buffer(99)\nprint('ESCAPED' if c.klogctl(3, b, 99) >= 0 else 'no')",
        "no",
    ),
    "physical memory": ("open('/dev/mem', 'rb').read(1)\nprint('ESCAPED')", "FileNotFoundError"),
    "files that were left open": (
        "import os\nfor i in range(3, 64):\n    try:\n        print('ESCAPED', os.readlink(f'/proc/self/fd/{i}'))\n"
        "    except FileNotFoundError: pass\nprint('end')",
        "end",
    ),
    "the terminal": ("print('ESCAPED' if open('/dev/tty') else '')", "OSError"),
    "waiting for input": ("print('ESCAPED' if input() else '')", "EOFError"),
}

WRITING = {
    "beside the scratch folder": ("open('/x', 'w')\nprint('ESCAPED')", "Read-only file system"),
    "devices": ("open('/dev/x', 'w')\nprint('ESCAPED')", "Read-only file system"),
    "libraries": ("import os\nopen(os.__file__, 'a')\nprint('ESCAPED')", FAILED),
    "the interpreter": ("import os, sys\nos.unlink(sys.executable)\nprint('ESCAPED')", FAILED),
    "the program": ("open(__file__, 'w')\nprint('ESCAPED')", FAILED),
    "a symbolic link outwards": (
        "import os\nos.symlink('{outside}', '/tmp/link')\nopen('/tmp/link', 'w').write('owned')\nprint('ESCAPED')",
        "FileNotFoundError",
    ),
    "a hard link outwards": ("import os\nos.link(os.__file__, '/tmp/link')\nprint('ESCAPED')", "cross-device link"),
    "a device of its own": (
        "import os, stat\nos.mknod('/tmp/mem', 0o666 | stat.S_IFCHR, os.makedev(1, 1))\nprint('ESCAPED')",
        "PermissionError",
    ),
    "anything of the kernel's": (
        "import os\nx = [os.path.join(f, n) for f, _, names in os.walk('/proc') for n in names]\n"
        "x = [p for p in x if os.path.exists(p) and os.access(p, os.W_OK) and not p.endswith('/fd/1')]\n"
        "print('ESCAPED' if any('/fd/' not in p and '/map_files/' not in p for p in x) else 'no')",
        "no",
    ),
    "kernel settings": ("open('/proc/sys/kernel/core_pattern', 'w').write('x')\nprint('ESCAPED')", FAILED),
    "the machine's halt": ("open('/proc/sysrq-trigger', 'w').write('b')\nprint('ESCAPED')", FAILED),
    "more room": (f"{C}print('ESCAPED' if c.mount(0, b'/tmp', 0, 32, b'size=1g') == 0 else 'no')", "no"),
}

POWERS = {
    "killing the parent": ("import os\nos.kill(os.getppid(), 9)\nprint('still here')", "still here"),
    "killing everybody": ("import os\nos.kill(-1, 9)\nprint('ESCAPED')", "ProcessLookupError"),
    "killing its group": ("import os\nos.kill(0, 9)\nprint('ESCAPED')", "SIGKILL"),
    "stopping its group": ("import os\nos.kill(0, 19)", ENDED),
    "tracing": (f"{C}print('ESCAPED' if c.ptrace(16, os.getppid(), 0, 0) == 0 else 'no')", "no"),
    "mounting": (f"{C}print('ESCAPED' if c.mount(b'x', b'/tmp', b'tmpfs', 0, 0) == 0 else 'no')", "no"),
    "unmounting": (f"{C}print('ESCAPED' if c.umount2(b'/proc', 2) == 0 else 'no')", "no"),
    "a user namespace of its own": (f"{C}print('ESCAPED' if c.unshare(0x10000000) == 0 else 'no')", "no"),
    "a process in a namespace": (f"{C}print('ESCAPED' if c.syscall(56, 0x10000011, 0, 0, 0, 0) >= 0 else 'no')", "no"),
    "entering a namespace": (
        f"{C}print('ESCAPED' if c.setns(os.open('/proc/self/ns/user', 0), 0) == 0 else 'no')",
        "no",
    ),
    "another root": ("import os\nos.chroot('/tmp')\nprint('ESCAPED')", "PermissionError"),
    "becoming root": ("import os\nos.setuid(0)\nprint('ESCAPED')", FAILED),
    "programs with a root's rights": (
        "import os\nx = [p for p in ('/usr/bin/sudo', '/usr/bin/su', '/bin/mount') if os.path.exists(p)]\n"
        "print('ESCAPED' if x else 'none')",
        "none",
    ),
    "the kernel's doors": (
        f"{C}x = [c.syscall(n, 0, 0, 0, 0, 0) for n in (321, 298, 323, 425, 250)]\n"
        "print('ESCAPED' if max(x) >= 0 else ctypes.get_errno())",
        "1",
    ),
    "another machine's calls": (f"{C}print('ESCAPED' if c.syscall((1 << 30) + 39) >= 0 else 'no')", "no"),
    "a crash": ("import ctypes\nctypes.string_at(0)\nprint('ESCAPED')", "SIGSEGV"),
    "leaving": ("import sys\nsys.exit(7)\nprint('ESCAPED')", "Error: exit code 7"),
    "recursion": ("def f(): f()\nf()\nprint('ESCAPED')", "RecursionError"),
}

PROGRAMS = {
    f"{kind}: {name}": program
    for kind, programs in {
        "network": NETWORK,
        "too much": TOO_MUCH,
        "too long": TOO_LONG,
        "reading": READING,
        "writing": WRITING,
        "powers": POWERS,
    }.items()
    for name, program in programs.items()
}
