"""A stand-in for the API of a Kubernetes cluster: notes what is asked for, and runs pods here."""

import json
import re
import subprocess
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Cluster:
    """Pods by name, as they were sent, and processes that run them."""

    def __init__(self, environment):
        self.environment = environment
        self.pods = {}
        self.processes = {}

    def start(self, pod):
        name = pod["metadata"]["name"]
        self.pods[name] = pod
        (container,) = pod["spec"]["containers"]
        command = [*container.get("command", []), *container.get("args", [])]
        self.processes[name] = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def pod_status(self, name):
        status = self.processes[name].poll()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if status is None:
            state, phase = {"running": {"startedAt": now}}, "Running"
        else:
            state = {"terminated": {"exitCode": status, "startedAt": now, "finishedAt": now}}
            phase = "Failed" if status else "Succeeded"
        return {"phase": phase, "containerStatuses": [{"name": name, "state": state}]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster = None

    def log_message(self, *_):
        pass

    def _reply(self, value, status=200):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        pod = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pod["asked"] = self.path
        self.cluster.start(pod)
        self._reply({"metadata": {"name": pod["metadata"]["name"]}}, 201)

    def do_DELETE(self):
        self._reply({})

    def do_GET(self):
        cluster = self.cluster
        if match := re.search(r"/persistentvolumeclaims/([^/?]+)", self.path):
            self._reply({"metadata": {"name": match[1]}})
        elif re.search(r"/pods/[^/]+/log", self.path):
            self._reply(b"")
        elif match := re.search(r"/pods/([^/?]+)", self.path):
            made = {"name": match[1]}
            status = cluster.pod_status(match[1])
            self._reply({"kind": "Pod", "metadata": made, "spec": {}, "status": status})
        else:
            self._reply({"kind": "Status", "message": self.path}, 404)


@contextmanager
def cluster(environment):
    """Run a cluster; yields it with its address in `url`."""
    made = Cluster(environment)
    handler = type("Handler", (_Handler,), {"cluster": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        for process in made.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
