#include "server/config/config.h"

namespace quire {
namespace {

constexpr double kBig = 9e15;

#define QUIRE_SETTING(section, key, member, min, max, help, ...)                                  \
  Setting {                                                                                       \
#section, key, [](Config & c) -> Setting::Pointer { return &c.section.member; }, min, max,    \
                                                                                  {__VA_ARGS__ }, \
                                                                                   help           \
  }

std::vector<Setting> make_table() {
  return {
      QUIRE_SETTING(server, "host", host, 0, 0,
                    "address to listen on; anything but loopback needs auth.keys_file or "
                    "auth.jwt_issuer"),
      QUIRE_SETTING(server, "port", port, 0, 65535,
                    "port to listen on; 0 takes a free one and logs it"),
      QUIRE_SETTING(server, "tls_certificate", tls_certificate, 0, 0,
                    "PEM file with the certificate chain; with it the port speaks https only"),
      QUIRE_SETTING(server, "tls_key", tls_key, 0, 0,
                    "PEM file with the certificate's private key; SIGHUP reads both again"),
      QUIRE_SETTING(server, "threads", threads, 0, 256, "I/O threads; 0: one per core, at most 4"),
      QUIRE_SETTING(server, "max_body_bytes", max_body_bytes, 1024, kBig,
                    "largest request body; more is 413"),
      QUIRE_SETTING(server, "max_held_body_bytes", max_held_body_bytes, 1024, kBig,
                    "bodies of all running requests together; one more is 503"),
      QUIRE_SETTING(server, "max_queue", max_queue, 1, 1e6,
                    "queries that may wait; one more is 503 overloaded"),
      QUIRE_SETTING(server, "max_connections", max_connections, 1, 1e6,
                    "open connections; one more is 503"),
      QUIRE_SETTING(server, "drain_seconds", drain_seconds, 0, 3600,
                    "how long running requests may finish after SIGTERM"),
      QUIRE_SETTING(server, "sse_ping_seconds", sse_ping_seconds, 0.01, 3600,
                    "silence in a stream before a ping comment"),
      QUIRE_SETTING(server, "header_timeout_seconds", header_timeout_seconds, 0.01, 3600,
                    "time for the request line and headers"),
      QUIRE_SETTING(server, "body_timeout_seconds", body_timeout_seconds, 0.01, 3600,
                    "silence allowed while a body is due"),
      QUIRE_SETTING(server, "idle_timeout_seconds", idle_timeout_seconds, 0.01, 86400,
                    "how long an idle connection is kept"),
      QUIRE_SETTING(
          server, "cors_origins", cors_origins, 0, 0,
          "origins browsers may call from, each scheme://host[:port], or \"*\" for any; in "
          "flags and the environment with commas between"),
      QUIRE_SETTING(server, "allowed_hosts", allowed_hosts, 0, 0,
                    "names besides localhost and server.host that requests may give in their Host "
                    "header, or \"*\" for any; empty: beyond loopback any"),
      QUIRE_SETTING(server, "ui", ui, 0, 0, "serve the web page at /, and /docs"),
      QUIRE_SETTING(
          model, "path", path, 0, 0,
          "GGUF file, Hugging Face model folder or hf:org/repo; empty: the embedded model"),
      QUIRE_SETTING(model, "name", name, 0, 0, "name of the model in the API"),
      QUIRE_SETTING(model, "aliases", aliases, 0, 0,
                    "other names that requests may call the model by, for programs that name one "
                    "of their own; in flags and the environment with commas between"),
      QUIRE_SETTING(model, "further", further, 0, 0,
                    "models besides this one, each NAME=MODEL (as model.path) or NAME=FILE.toml "
                    "with its settings; in flags and the environment with commas between"),
      QUIRE_SETTING(
          model, "backend", backend, 0, 0,
          "where to compute; cuda: the GPU of that number; auto: the CPU, naming a GPU that could",
          "auto", "cpu", "cuda"),
      QUIRE_SETTING(model, "device", device, 0, 1024, "accelerator number"),
      QUIRE_SETTING(model, "tensor_parallel", tensor_parallel, 1, 64,
                    "GPUs from model.device on that the outputs of every matrix are cut over; "
                    "stored KV stays valid at any number"),
      QUIRE_SETTING(model, "split_kv", split_kv, 0, 0,
                    "cuts KV over those GPUs, too, by head: contexts may be longer, and decode is "
                    "dense or auto"),
      QUIRE_SETTING(
          model, "max_model_len", max_model_len, 0, 1e7,
          "longest prompt and answer together, at most the model's own window; 0: that window"),
      QUIRE_SETTING(model, "kv_dtype", kv_dtype, 0, 0, "type of cached keys and values", "f16",
                    "bf16", "f32"),
      QUIRE_SETTING(model, "device_kv_dtype", device_kv_dtype, 0, 0,
                    "type of keys and values in a GPU's memory; auto: as kv_dtype; f8: eight bits "
                    "(E4M3), half the memory; what is stored keeps kv_dtype",
                    "auto", "f8"),
      QUIRE_SETTING(model, "weights", weights, 0, 0,
                    "type of the weights in memory; auto: as stored in a GGUF file of blocks (w4), "
                    "else bf16 where the CPU multiplies it, else f32",
                    "auto", "f32", "bf16", "int8", "w8a8", "w4"),
      QUIRE_SETTING(model, "prompt_format", prompt_format, 0, 0,
                    "auto: the model's own chat template; template: that, never a native family; "
                    "or a family: plain, quire, llama2, llama3, llama3.1, mistral, mistral-v0.3, "
                    "chatml, qwen2, qwen2.5, qwen3, zephyr, deepseek-r1"),
      QUIRE_SETTING(model, "threads", threads, 0, 1024,
                    "threads of the engine; 0: all cores that it may use"),
      QUIRE_SETTING(model, "working_cache_bytes", working_cache_bytes, 0, kBig,
                    "memory for running requests; 0: a quarter of what is free"),
      QUIRE_SETTING(model, "prefix_cache_bytes", prefix_cache_bytes, -1, kBig,
                    "of that, for computed prompts kept for requests that begin alike; 0: none; "
                    "-1: a quarter"),
      QUIRE_SETTING(model, "retrieval_head_path", retrieval_head_path, 0, 0,
                    "folder of a retrieval head for cache.decode specontext; empty: head/ in the "
                    "model's folder, if there; none: none"),
      QUIRE_SETTING(model, "draft_path", draft_path, 0, 0,
                    "folder of a smaller model that looks ahead for compressors and cuts prompts; "
                    "empty: draft/ in the model's folder, if there; none: none"),
      QUIRE_SETTING(model, "device_cache_bytes", device_cache_bytes, -1, kBig,
                    "most memory for what retrievers keep on the device; 0: no limit; -1: on a GPU "
                    "a quarter of what computing leaves, else no limit"),
      QUIRE_SETTING(model, "host_cache_bytes", host_cache_bytes, -1, kBig,
                    "with a GPU, pinned memory of the host for layers of working caches that leave "
                    "it; 0: none leave; -1: a quarter of what is free"),
      QUIRE_SETTING(
          model, "device_requests", device_requests, 1, 1024,
          "requests that device_cache_bytes is shared out to; none takes more than its part"),
      QUIRE_SETTING(model, "draft_weights", draft_weights, 0, 0,
                    "type of the draft's weights in memory; same: as weights", "same", "auto",
                    "f32", "bf16", "int8", "w8a8", "w4"),
      QUIRE_SETTING(model, "draft_layers", draft_layers, 0, 4096,
                    "only so many first layers of the draft run, so that a model can be its own "
                    "draft; 0: all"),
      QUIRE_SETTING(model, "draft_document_kv", draft_document_kv, 0, 0,
                    "ingest has the draft read documents, too, and keeps its KV of them in the "
                    "store; true or false"),
      QUIRE_SETTING(model, "draft_wait_ms", draft_wait_ms, 0, 600000,
                    "how long a question waits for its look-ahead"),
      QUIRE_SETTING(auth, "keys_file", keys_file, 0, 0,
                    "TOML file with API keys (see configs/keys.example.toml); empty: no keys"),
      QUIRE_SETTING(auth, "allow_insecure", allow_insecure, 0, 0,
                    "listen beyond loopback without keys"),
      QUIRE_SETTING(auth, "jwt_issuer", jwt_issuer, 0, 0,
                    "issuer (iss) whose tokens are taken beside API keys, such as "
                    "https://id.example.org; empty: none"),
      QUIRE_SETTING(auth, "jwt_audience", jwt_audience, 0, 0,
                    "audience (aud) that a token must name; needed with auth.jwt_issuer"),
      QUIRE_SETTING(auth, "jwt_keys", jwt_keys, 0, 0,
                    "file or https address of the issuer's public keys (JWKS); empty: what the "
                    "issuer's /.well-known/openid-configuration names"),
      QUIRE_SETTING(auth, "jwt_namespace_claim", jwt_namespace_claim, 0, 0,
                    "claim of a token with its namespaces: a text, or an array of texts"),
      QUIRE_SETTING(auth, "jwt_scope_claim", jwt_scope_claim, 0, 0,
                    "claim of a token with its scopes: texts with spaces between, or an array"),
      QUIRE_SETTING(auth, "jwt_scope_prefix", jwt_scope_prefix, 0, 0,
                    "what stands before read, write, query and admin in that claim"),
      QUIRE_SETTING(auth, "jwt_clock_skew_seconds", jwt_clock_skew_seconds, 0, 600,
                    "how far the issuer's clock may be off"),
      QUIRE_SETTING(limits, "requests_per_minute", requests_per_minute, 0, 1e9,
                    "per key; 0: no limit"),
      QUIRE_SETTING(limits, "tokens_per_minute", tokens_per_minute, 0, kBig,
                    "prompt and answer tokens per key; 0: no limit"),
      QUIRE_SETTING(limits, "documents_per_call", documents_per_call, 1, 100000,
                    "documents in one POST"),
      QUIRE_SETTING(limits, "document_tokens", document_tokens, 1, 1e8, "tokens of one document"),
      QUIRE_SETTING(limits, "documents_per_query", documents_per_query, 1, 100000,
                    "documents of one query"),
      QUIRE_SETTING(
          limits, "namespace_bytes", namespace_bytes, 0, kBig,
          "per namespace, texts and the KV that all of their tokens take, whatever of it is "
          "cached; 0: no limit"),
      QUIRE_SETTING(cache, "block_tokens", block_tokens, 0, 64,
                    "tokens of a KV block: 16, 32 or 64; 0: by context length"),
      QUIRE_SETTING(cache, "layers_per_value", layers_per_value, 0, 1024,
                    "layers that share a stored value; 0: as many as fit into 1 MiB; 1 for "
                    "strategies whose kept blocks differ by layer"),
      QUIRE_SETTING(cache, "dram_bytes", dram_bytes, 0, kBig, "memory tier"),
      QUIRE_SETTING(cache, "eviction", eviction, 0, 0, "what goes first when a tier is full", "lru",
                    "s3fifo"),
      QUIRE_SETTING(cache, "page_locked", page_locked, 0, 0,
                    "page-locked memory for the memory tier, which a GPU reads by itself; auto: "
                    "where a GPU computes, on: no start without it",
                    "auto", "on", "off"),
      QUIRE_SETTING(cache, "max_pinned_ratio", max_pinned_ratio, 0, 1,
                    "share of a tier that pins may hold"),
      QUIRE_SETTING(cache, "share_across_namespaces", share_across_namespaces, 0, 0,
                    "equal text of two namespaces shares its KV"),
      QUIRE_SETTING(cache, "quotas_file", quotas_file, 0, 0,
                    "TOML file with the KV quotas of each namespace: [team] with dram_bytes, "
                    "disk_bytes, remote_bytes and share; empty: none"),
      QUIRE_SETTING(disk, "path", path, 0, 0, "folder of the store"),
      QUIRE_SETTING(disk, "max_bytes", max_bytes, 0, kBig, "hard limit of that folder; 0: none"),
      QUIRE_SETTING(
          disk, "prompt_bytes", prompt_bytes, 0, kBig,
          "of that folder, for computed prompts without documents, which a restart then "
          "knows; at most an eighth of max_bytes, none if that is less than 64 MiB; 0: none"),
      QUIRE_SETTING(disk, "on_damage", on_damage, 0, 0,
                    "what a start does with a record that cannot be read whole: refuse; salvage "
                    "what can be read, with the KV of it; or text_only, without any KV. What was "
                    "there is kept aside",
                    "refuse", "salvage", "text_only"),
      QUIRE_SETTING(disk, "record_copies", record_copies, 1, 2,
                    "2: documents, texts and jobs (not KV) are written to a second database, too, "
                    "before a write is acknowledged; what the first one loses comes back from it"),
      QUIRE_SETTING(disk, "copy_path", copy_path, 0, 0,
                    "folder of that copy, at best on another disk; empty: the store's folder with "
                    "-copy behind its name"),
      QUIRE_SETTING(disk, "direct_io", direct_io, 0, 0, "read around the page cache"),
      QUIRE_SETTING(disk, "threads", threads, 1, 64, "reader threads"),
      QUIRE_SETTING(catalog, "url", url, 0, 0,
                    "PostgreSQL database that replicas have their documents from: "
                    "postgresql://user:password@host:5432/database?sslmode=verify-full; empty: "
                    "the documents are this service's own"),
      QUIRE_SETTING(catalog, "poll_ms", poll_ms, 10, 600000,
                    "changes of other replicas are announced; they are also asked for this often"),
      QUIRE_SETTING(catalog, "timeout_ms", timeout_ms, 100, 600000,
                    "to connect, and for an answer apart from the transfer of texts"),
      QUIRE_SETTING(catalog, "connections", connections, 1, 64,
                    "connections at most, besides the one for announcements"),
      QUIRE_SETTING(catalog, "job_lease_ms", job_lease_ms, 2000, 3600000,
                    "a replica that has not been heard of for this long loses its jobs to the "
                    "others"),
      QUIRE_SETTING(remote, "url", url, 0, 0,
                    "tiers that replicas share: redis://host,host (rediss: over TLS), "
                    "redis+sentinel://host,host/master, s3://bucket/prefix?endpoint=, or Redis and "
                    "S3 with a space between; empty: none"),
      QUIRE_SETTING(remote, "timeout_ms", timeout_ms, 1, 600000,
                    "to connect, and to ask what there is; a transfer may take as long as "
                    "computing its KV would; a query computes on after a tenth of that"),
      QUIRE_SETTING(remote, "hedged_reads", hedged_reads, 0, 0,
                    "a read that a tier keeps waiting is sent besides to a replica of Redis, to "
                    "the bucket once more, or to the next tier"),
      QUIRE_SETTING(remote, "mode", mode, 0, 0, "use of the shared tier", "read_write", "read",
                    "write"),
      QUIRE_SETTING(remote, "write", write, 0, 0,
                    "when documents are written there: behind their commit, or through, which "
                    "waits for it",
                    "behind", "through"),
      QUIRE_SETTING(remote, "ttl_seconds", ttl_seconds, 0, 1e9,
                    "after which Redis forgets KV; 0: never. A bucket has lifecycle rules"),
      QUIRE_SETTING(remote, "lease_ms", lease_ms, 0, 600000,
                    "lease in Redis by which replicas that get one document at once compute it "
                    "once; 0: none, else 1000 at least"),
      QUIRE_SETTING(remote, "keys_file", keys_file, 0, 0,
                    "TOML file that names the encryption key of each namespace: [team] with file "
                    "or variable; empty: shared KV is not encrypted"),
      QUIRE_SETTING(policy, "strategy", strategy, 0, 0, "default cache.strategy of queries"),
      QUIRE_SETTING(policy, "compress", compress, 0, 0, "default cache.compress of queries"),
      QUIRE_SETTING(policy, "decode", decode, 0, 0, "default cache.decode of queries"),
      QUIRE_SETTING(policy, "small_ctx", small_ctx, 0, 1e7,
                    "auto stays exact for prompts up to this many tokens, at most a quarter of the "
                    "model's window"),
      QUIRE_SETTING(policy, "lead_in", lead_in, 0, 0,
                    "whether documents are read behind the lead-in whose request does not say it; "
                    "auto: where certificates show that to be quicker",
                    "auto", "on", "off"),
      QUIRE_SETTING(policy, "model_card", model_card, 0, 0,
                    "take what quire-card.json beside the model says of it"),
      QUIRE_SETTING(policy, "evidence", evidence, 0, 0,
                    "probe the service's own documents while idle, so that auto may use what is "
                    "shown to be good enough"),
      QUIRE_SETTING(policy, "shadow_ratio", shadow_ratio, 0, 1,
                    "share of approximate queries checked against full recomputation when idle"),
      QUIRE_SETTING(policy, "shadow_min_agreement", shadow_min_agreement, 0, 1,
                    "auto falls back to exact when checked queries agree less"),
      QUIRE_SETTING(policy, "fidelity_max_drop", fidelity_max_drop, 0, 1,
                    "certified strategies lose at most this share of score"),
      QUIRE_SETTING(policy, "default_ttl_seconds", default_ttl_seconds, 0, 1e10,
                    "life of documents posted without one; 0: no end"),
      QUIRE_SETTING(retrieve, "enabled", enabled, 0, 0,
                    "index the texts, for /v1/retrieve and queries without documents"),
      QUIRE_SETTING(retrieve, "language", language, 0, 0,
                    "whose words are stemmed, for retrieval and for strategies that match words; "
                    "none: no stems"),
      QUIRE_SETTING(retrieve, "max_index_bytes", max_index_bytes, 0, kBig,
                    "memory of that index; past it a part lies on disk"),
      QUIRE_SETTING(retrieve, "max_index_disk_bytes", max_index_disk_bytes, 0, kBig,
                    "disk for that part, beside disk.max_bytes; documents past it are not found"),
      QUIRE_SETTING(
          retrieve, "embeddings", embeddings, 0, 0,
          "embed every chunk with the loaded model, for the scorers embedding and hybrid"),
      QUIRE_SETTING(retrieve, "encoder", encoder, 0, 0,
                    "folder of a text encoder (BERT family, as sentence-transformers writes it) "
                    "that embeds every chunk instead of the loaded model; empty: none"),
      QUIRE_SETTING(retrieve, "embeddings_url", embeddings_url, 0, 0,
                    "OpenAI-compatible endpoint that embeds every chunk and question instead: "
                    "texts leave this machine; empty: none"),
      QUIRE_SETTING(retrieve, "embeddings_model", embeddings_model, 0, 0,
                    "model to name there; empty: none"),
      QUIRE_SETTING(retrieve, "embeddings_key_env", embeddings_key_env, 0, 0,
                    "environment variable that holds the key for it; empty: no key"),
      QUIRE_SETTING(
          retrieve, "encoder_weights", encoder_weights, 0, 0,
          "how encoder and reranker multiply; f32 gives the published vectors, bf16 is faster",
          "f32", "bf16"),
      QUIRE_SETTING(retrieve, "encoder_threads", encoder_threads, 0, 1024,
                    "threads of a call of encoder or reranker; 0: half of the cores"),
      QUIRE_SETTING(retrieve, "reranker", reranker, 0, 0,
                    "folder of a cross-encoder (BERT family) that ranks the best texts anew, and "
                    "for /v1/rerank; empty: none"),
      QUIRE_SETTING(retrieve, "rerank", rerank, 0, 100,
                    "how many of the best texts the reranker ranks anew; 0: it serves /v1/rerank "
                    "alone"),
      QUIRE_SETTING(retrieve, "scorer", scorer, 0, 0,
                    "what ranks where a request names no scorer; auto: hybrid with "
                    "retrieve.encoder or retrieve.embeddings_url, else bm25",
                    "auto", "bm25", "embedding", "hybrid"),
      QUIRE_SETTING(retrieve, "order", order, 0, 0,
                    "where documents that are found for a question stand in the prompt: the best "
                    "one first, or last, right before the question",
                    "best_first", "best_last"),
      QUIRE_SETTING(retrieve, "links", links, 0, 1,
                    "part of a text's score that goes on to documents whose titles it names; 0: "
                    "none"),
      QUIRE_SETTING(retrieve, "max_embedding_bytes", max_embedding_bytes, 0, kBig,
                    "memory of embeddings; past it a part lies on disk"),
      QUIRE_SETTING(retrieve, "max_embedding_disk_bytes", max_embedding_disk_bytes, 0, kBig,
                    "disk for that part, beside disk.max_bytes; documents past it are not found by "
                    "their meaning"),
      QUIRE_SETTING(retrieve, "exact_embeddings", exact_embeddings, 1, 1e9,
                    "chunks of a namespace up to which every one is compared; more are searched "
                    "through lists"),
      QUIRE_SETTING(prompt, "intro", intro, 0, 0,
                    "words before the first document; auto: those of the prompt format"),
      QUIRE_SETTING(prompt, "document", document, 0, 0,
                    "words around a document, with {title} and {text}; KV is bound to them"),
      QUIRE_SETTING(prompt, "question", question, 0, 0, "words before the question"),
      QUIRE_SETTING(prompt, "citation", citation, 0, 0,
                    "how cited_answer shows a citation, such as \" [{n}]\" or \" ({title}{?page:, "
                    "p. {page}})\"; empty: there is no cited_answer"),
      QUIRE_SETTING(prompt, "namespaces_file", namespaces_file, 0, 0,
                    "TOML file with a table for each namespace that has words of its own: intro, "
                    "document, question, citation; empty: none"),
      QUIRE_SETTING(fetch, "hosts", hosts, 0, 0,
                    "hosts from which `url` of a document may be fetched: example.org, "
                    "*.example.org, either with :port, or *; empty: none"),
      QUIRE_SETTING(fetch, "private_addresses", private_addresses, 0, 0,
                    "also fetch from loopback, private and other addresses that are not public"),
      QUIRE_SETTING(fetch, "max_bytes", max_bytes, 1, kBig, "largest file that is fetched"),
      QUIRE_SETTING(fetch, "timeout_seconds", timeout_seconds, 1, 3600,
                    "time for fetching one file"),
      QUIRE_SETTING(explain, "retain", retain, 0, 1e6, "how many queries /explain remembers"),
      QUIRE_SETTING(explain, "keep_text", keep_text, 0, 0, "remember questions and answers too"),
      QUIRE_SETTING(metrics, "enabled", enabled, 0, 0, "serve /metrics"),
      QUIRE_SETTING(metrics, "public", is_public, 0, 0, "/metrics needs no key"),
      QUIRE_SETTING(metrics, "per_namespace", per_namespace, 0, 0, "namespace as a label"),
      QUIRE_SETTING(metrics, "vllm_names", vllm_names, 0, 0, "also export the vllm: names"),
      QUIRE_SETTING(trace, "endpoint", endpoint, 0, 0,
                    "address that takes spans as OTLP over HTTP in JSON, such as "
                    "http://127.0.0.1:4318/v1/traces; empty: none are made"),
      QUIRE_SETTING(trace, "service_name", service_name, 0, 0, "service.name of the spans"),
      QUIRE_SETTING(trace, "ratio", ratio, 0, 1,
                    "share of requests that are traced where no traceparent decides"),
      QUIRE_SETTING(backup, "path", path, 0, 0,
                    "folder of backups of all documents and jobs, without KV, which the running "
                    "service makes; empty: none"),
      QUIRE_SETTING(backup, "every_hours", every_hours, 0, 8760,
                    "hours between two backups; 0: only by 'quire admin backup'"),
      QUIRE_SETTING(backup, "keep", keep, 0, 100000, "newest backups that stay; 0: all"),
      QUIRE_SETTING(log, "level", level, 0, 0, "least level written", "debug", "info", "warning",
                    "error", "off"),
      QUIRE_SETTING(log, "format", format, 0, 0,
                    "one JSON object or key=value text a line; auto: text on a terminal, else JSON",
                    "auto", "json", "text"),
      QUIRE_SETTING(log, "audit", audit, 0, 0,
                    "file of the audit log, a JSON line for each change and each refused access; "
                    "SIGHUP opens it again; empty: none"),
      QUIRE_SETTING(log, "contexts", contexts, 0, 0,
                    "log the digests and tokens of a question's contexts, which 'quire "
                    "plan-capacity' reads as a trace"),
      QUIRE_SETTING(log, "texts", texts, 0, 0, "log questions and answers: for development only"),
      QUIRE_SETTING(log, "core_memory", core_memory, 0, 0,
                    "core files of a crash hold the memory, with texts and keys: for development "
                    "only"),
  };
}

#undef QUIRE_SETTING

}  // namespace

const std::vector<Setting>& setting_table() {
  static const std::vector<Setting> table = make_table();
  return table;
}

}  // namespace quire
