"""What a supervisor watches over, without vLLM: answers /health, and has started a child that waits for ever.

`python health_server.py PORT PIDFILE` writes both process ids to PIDFILE, and a line per answer to PIDFILE.answers.
"""

import http.server
import os
import subprocess
import sys
from pathlib import Path


class Health(http.server.BaseHTTPRequestHandler):
    """200 to everything."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with Path(f"{sys.argv[2]}.answers").open("a") as answers:
            answers.write("200\n")

    def log_message(self, format: str, *args: object) -> None:
        return


if __name__ == "__main__":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(sys.argv[2]).write_text(f"{os.getpid()} {child.pid}")
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
