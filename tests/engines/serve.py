"""``python -m tests.engines.serve MODEL``: ``vllm serve`` on blockmgr, with a client.

An OpenAI client sends the same requests to a server with vLLM's own manager and to one on blockmgr;
texts must be equal, and ``/metrics`` must show hits.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import openai

# As a client says it; vLLM's own manager ignores it.
WISHES = {"blockmgr_cache_control": "5m", "session_id": "chat"}
PATIENCE = 300  # seconds for a server to come up


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=120) as answer:
        text: str = answer.read().decode()
        return text


def wait_for(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the server has ended:\n{log.read_text()[-4000:]}")
        try:
            read(f"{url}/health")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(1)
        else:
            return
    raise TimeoutError(f"no server:\n{log.read_text()[-4000:]}")


def total(metrics: str, name: str) -> float:
    samples = re.findall(rf"^{name}(?:\{{.*\}})? ([0-9.e+]+)$", metrics, re.M)
    return sum(map(float, samples))


def texts(model: str, options: Any) -> tuple[list[str], float, float, str]:
    """A server's answers, the hits in vLLM's and in our metrics, and its log."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
    command += ["--port", str(port), "--enforce-eager", "--dtype", "float32"]
    command += ["--block-size", "32", "--max-model-len", "2048", "--max-num-seqs", "16"]
    if options is not None:
        command += ["--additional-config", json.dumps({"blockmgr": options})]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    url = f"http://127.0.0.1:{port}"
    rng = random.Random(5)
    head = [rng.randrange(3, 1024) for _ in range(200)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            server = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
            try:
                wait_for(server, url, log)
                client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120)
                answers = []
                for i in range(8):
                    tail = [rng.randrange(3, 1024) for _ in range(10 + i)]
                    said = client.completions.create(
                        model=model,
                        prompt=head + tail,
                        max_tokens=16,
                        temperature=0,
                        extra_body={"ignore_eos": True, "vllm_xargs": WISHES},
                    )
                    answers.append(said.choices[0].text)
                metrics = read(f"{url}/metrics")
                own = options and read(f"http://127.0.0.1:{options['metrics_port']}/metrics")
            finally:
                server.terminate()
                server.wait(60)
        hits = total(metrics, "vllm:prefix_cache_hits_total")
        our_hits = total(own or "", "blockmgr_prefix_cache_hits_total")
        return answers, hits, our_hits, log.read_text()


def main() -> int:
    model = sys.argv[1]
    stock, stock_hits, _, _ = texts(model, None)
    options = {"report_every": 1, "explain_every": 1, "metrics_port": free_port()}
    options |= {"retention": True}
    ours, our_hits, told, log = texts(model, options)
    on = "blockmgr manages the KV cache" in log
    good = stock == ours and told == our_hits >= stock_hits > 0 and on
    good &= "wishes of requests ignored" not in log
    same = sum(a == b for a, b in zip(stock, ours, strict=True))
    print(
        f"{same} of {len(stock)} texts equal over HTTP; hit tokens by /metrics {stock_hits:.0f} "
        f"with vLLM's own, {our_hits:.0f} with blockmgr, {told:.0f} by its own metrics; "
        + ("good" if good else f"NOT GOOD (blockmgr {'on' if on else 'off'})")
    )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
