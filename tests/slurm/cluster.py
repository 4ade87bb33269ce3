"""A cluster of Slurm on this machine: munge, slurmctld and several slurmd under names of their own, in one folder."""
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun", "sinfo", "scancel", "scontrol")


def missing_programs():
    return [program for program in PROGRAMS if not shutil.which(program, path=search_path())]


def search_path():
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    """Use it as a context: daemons run inside."""

    def __init__(self, nodes=3, cpus=1):
        self.folder = Path(tempfile.mkdtemp(prefix="kvbound-slurm-"))
        self.nodes = [f"node{i}" for i in range(nodes)]
        self.cpus = cpus
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": search_path()}
        for name in [name for name in self.environment if name.startswith(("SLURM_", "SBATCH_", "SRUN_")) and name != "SLURM_CONF"]:
            del self.environment[name]
        self.daemons = {}

    def __enter__(self):
        self.folder.chmod(0o755)
        for name in ("state", "spool", "log", "munge"):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o600)
        self.write_configuration()
        self.start("munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key", f"--socket={self.folder}/munge/socket",
                   f"--pid-file={self.folder}/munge/pid", f"--log-file={self.folder}/log/munged.log",
                   f"--seed-file={self.folder}/munge/seed")
        self.wait_for(lambda: (self.folder / "munge/socket").exists(), "munge's socket")
        self.start("slurmctld", "-D")
        for node in self.nodes:
            self.start_node(node)
        self.wait_for(lambda: self.states().count("idle") == len(self.nodes), "idle nodes")
        return self

    def __exit__(self, *_):
        for name in reversed(list(self.daemons)):
            self.stop(name)
        self.kill_steps()
        shutil.rmtree(self.folder, ignore_errors=True)

    def write_configuration(self):
        host = socket.gethostname().split(".")[0]
        user = pwd.getpwuid(os.getuid()).pw_name
        controller, *ports = free_ports(1 + len(self.nodes))
        lines = ["ClusterName=kvbound", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmUser={user}", f"SlurmdUser={user}",
                 "AuthType=auth/munge", f"AuthInfo=socket={self.folder}/munge/socket,cred_expire=10", f"SlurmctldPort={controller}",
                 f"StateSaveLocation={self.folder}/state", f"SlurmdSpoolDir={self.folder}/spool/%n",
                 f"SlurmctldPidFile={self.folder}/slurmctld.pid", f"SlurmdPidFile={self.folder}/slurmd.%n.pid",
                 f"SlurmctldLogFile={self.folder}/log/slurmctld.log", f"SlurmdLogFile={self.folder}/log/%n.log",
                 "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SelectType=select/cons_tres",
                 "SelectTypeParameters=CR_CPU", "SchedulerType=sched/backfill", "SchedulerParameters=sched_min_interval=200000",
                 "MpiDefault=none", "ReturnToService=2", "SlurmdTimeout=4", "SlurmctldTimeout=10", "KillWait=1", "MinJobAge=5",
                 "JobRequeue=1", "SlurmdParameters=config_overrides"]
        lines += [f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus}"
                  for node, port in zip(self.nodes, ports)]
        lines += [f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP"]
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def start(self, name, *arguments):
        log = open(self.folder / "log" / f"{name}.out", "ab")
        self.daemons[name] = subprocess.Popen([shutil.which(name.split()[0], path=search_path()), *arguments], stdout=log, stderr=log,
                                              env=self.environment, start_new_session=True)
        log.close()

    def start_node(self, node):
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        self.start(f"slurmd {node}", "-D", "-N", node)

    def stop(self, name, sent=signal.SIGTERM):
        daemon = self.daemons.pop(name)
        daemon.send_signal(sent)
        try:
            daemon.wait(timeout=10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def kill_node(self, node):
        """As if the machine had lost its power: the daemon and all that it runs are gone."""
        self.stop(f"slurmd {node}", signal.SIGKILL)
        self.kill_steps(node)

    def kill_steps(self, node=None):
        """Kills the step daemons of a node, or of all, and their processes."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            ours = str(self.folder).encode() in environment
            of_node = node is None or f"SLURMD_NODENAME={node}".encode() in environment.split(b"\0")
            step = b"slurmstepd" in command and (node is None or f"/{node}/".encode() in command or node.encode() in command)
            if int(entry.name) != os.getpid() and ours and (of_node or step) and b"slurmctld" not in command \
                    and b"munged" not in command and b"slurmd\0-D" not in command:
                try:
                    os.kill(int(entry.name), signal.SIGKILL)
                except OSError:
                    pass

    def run(self, program, *arguments, check=True):
        """The output of one of Slurm's programs."""
        return subprocess.run([program, *arguments], env=self.environment, capture_output=True, text=True, check=check).stdout

    def recover(self):
        """No jobs, and all nodes idle."""
        self.run("scancel", *self.run("squeue", "--noheader", "--format=%A").split(), "--quiet", check=False)
        self.wait_for(lambda: not self.run("squeue", "--noheader", check=False), "end of all jobs")
        # a controller that was killed may find its nodes busy with jobs that it does not know
        for node in self.nodes:
            self.run("scontrol", "update", f"NodeName={node}", "State=resume", check=False)
        self.wait_for(lambda: self.states().count("idle") == len(self.nodes), "idle nodes")

    def has_saved(self, folder):
        """Whether the jobs that the controller has on disk include one of this folder: it writes them up to 5 s later."""
        jobs = self.folder / "state/job_state"
        return jobs.exists() and folder.encode() in jobs.read_bytes()

    def states(self):
        try:
            return self.run("sinfo", "--noheader", "--Node", "--format=%t").split()
        except (subprocess.CalledProcessError, FileNotFoundError):
            return []

    def wait_for(self, condition, what, seconds=300):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} after {seconds} s\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted((self.folder / "log").iterdir()))
