"""A local HTTP server for the tests of downloads."""

import contextlib
import http.server
import threading


@contextlib.contextmanager
def serve(handler):
    """Run a server with this class of request handlers; yield it, with its `url`."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
