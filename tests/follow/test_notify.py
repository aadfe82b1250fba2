"""Messages reach a service on this machine; what it does is no matter of the follower."""

import http.server
import json
import logging
import sys
import threading

import pytest

from linumpy.core.errors import InputError
from linumpy.follow.notify import Notifier
from linumpy.follow.verdict import Reason, Verdict

# apprise takes seconds to import.
pytestmark = pytest.mark.slow

SECRET = "s3cr3t-w0rd"
LOOK = Verdict(3, (Reason("dark_tile", "look", "dim", ("x01_y00",)),))
STOP = Verdict(4, (Reason("double_cut", "stop", "400 um"),))


@pytest.fixture
def service():
    """A service: what came, and an event without which it does not answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.came.append((self.path, json.loads(body)))
            self.server.answers.wait(60)
            self.send_response(self.server.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.came, server.answers, server.status = [], threading.Event(), 200
    server.answers.set()
    server.url = f"json://user:{SECRET}@127.0.0.1:{server.server_port}/{SECRET}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.answers.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("level", "slices"), [("pass", 3), ("look", 2), ("stop", 1)])
def test_verdicts_from_a_level_on_are_sent(service, level, slices):
    with Notifier([service.url], level) as notifier:
        for verdict in (Verdict(2), LOOK, STOP):
            notifier.send(verdict)
    texts = [body["message"] for _, body in service.came]
    assert texts == [v.to_text() for v in (Verdict(2), LOOK, STOP)][-slices:]
    assert service.came[-1][1]["title"] == "linumpy, slice z04"


def test_addresses_are_read_from_a_file(service, tmp_path):
    listed = tmp_path / "people"
    listed.write_text(f"# of the night\n\n{service.url}/a\n{service.url}/b\n")
    with Notifier([f"@{listed}"]) as notifier:
        notifier.send(STOP)
    assert sorted(path.rpartition("/")[2] for path, _ in service.came) == ["a", "b"]


def test_hanging_service_delays_no_verdict(service, caplog):
    service.answers.clear()
    hanging = f"{service.url}/hangs"
    notifier = Notifier([hanging])
    for _ in range(500):
        notifier.send(STOP)
    # All was sent while the service had not answered the first.
    assert not service.answers.is_set()
    notifier.close(0.2)
    assert caplog.text.count("a message was not sent (it does not answer)") == 1


def test_failures_are_one_warning_without_secrets(service, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    service.status = 500
    closed = f"json://user:{SECRET}@127.0.0.1:9/{SECRET}"
    with Notifier([service.url, closed]) as notifier:
        for _ in range(3):
            notifier.send(STOP)
    told = [r.getMessage() for r in caplog.records if r.name == "linumpy"]
    assert sorted(told) == [
        f"--notify, service {n} (json): a message was not sent (the service refused it, or cannot "
        "be reached)"
        for n in (1, 2)
    ]
    assert len(service.came) == 3
    written = capfd.readouterr()
    assert SECRET not in caplog.text + written.out + written.err


@pytest.mark.parametrize("url", [f"nonsense://{SECRET}", SECRET, f"slack://{SECRET}", ""])
def test_address_that_is_none_is_refused_without_its_words(url):
    with pytest.raises(
        InputError, match="service 1 .*: not an address that apprise takes"
    ) as error:
        Notifier([url])
    assert SECRET not in str(error.value)


def test_missing_file_and_missing_apprise_name_a_remedy(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="people: cannot be read"):
        Notifier([f"@{tmp_path / 'people'}"])
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(InputError, match=r"install the extra: pip install .*\[notify\]"):
        Notifier([f"json://{SECRET}"])
    Notifier([]).send(STOP)
