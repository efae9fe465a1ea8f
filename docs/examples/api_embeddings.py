"""Vectors of an API: an index of passages and its search, with every text sent once.

Run it with ``python docs/examples/api_embeddings.py``. The server is a stand-in on this machine that counts what it is asked
for: put your own address in its place, and name a model.
"""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import polars as pl
from erag_engine.retrieval import dense, encode
from erag_engine.retrieval.encoders import PassageEncoderOptions

asked: list[str] = []


class Server(BaseHTTPRequestHandler):
    """Gives texts with the same words alike vectors: each word adds 1 or -1 to each of 64 numbers."""

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        asked.extend(texts)
        data = [
            {
                "index": place,
                "embedding": [sum(column) for column in zip(*map(self.bits, words), strict=True)],
            }
            for place, words in enumerate(text.lower().strip("?.").split() for text in texts)
        ]
        usage = {"prompt_tokens": sum(len(text.split()) for text in texts)}
        answer = json.dumps({"data": data, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def bits(self, word: str) -> list[int]:
        number = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8])
        return [1 if number >> place & 1 else -1 for place in range(64)]

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_address[1]}/v1"

corpus = pl.DataFrame(
    {
        "doc_id": ["1", "2", "3"],
        "title": ["Aruba", "Animal Farm", "Cats"],
        "text": ["its capital is Oranjestad", "a novella by George Orwell", "a cat purrs"],
        "article_id": ["Aruba", "Animal Farm", "Cats"],
    }
)
queries = pl.DataFrame({"query_id": ["a", "b"], "query": ["capital of Aruba?", "which cat purrs?"]})

for folder in ("vectors", "the same in another folder"):
    spec = encode.specify(PassageEncoderOptions("openai:my-embeddings", base_url=address))
    dense.build_index(lambda: iter([corpus]), folder, spec)
    run = dense.search(folder, queries, dense.SearchOptions(k=1, base_url=address))
print(run)
print(f"{len(asked)} texts were sent, {len(set(asked))} of them different")
server.shutdown()
