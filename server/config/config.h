/// All settings of the service. They come from a TOML file, the environment and flags; the later
/// source wins.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace quire {

/// Zero means no limit, or off for a tier. docs/operations.md explains each setting;
/// setting_table() holds its one-line help.
struct Config {
  struct Server {
    std::string host = "127.0.0.1", tls_certificate, tls_key;
    std::int64_t port = 8080, threads = 0, max_body_bytes = 64 << 20, max_queue = 256,
                 max_connections = 4096, max_held_body_bytes = 512 << 20;
    double drain_seconds = 30, sse_ping_seconds = 15, header_timeout_seconds = 10,
           body_timeout_seconds = 30, idle_timeout_seconds = 75;
    std::vector<std::string> cors_origins, allowed_hosts;
    bool ui = true;
  } server;
  struct Model {
    std::string path, name = "default", backend = "auto", kv_dtype = "f16",
                      device_kv_dtype = "auto", weights = "auto", prompt_format = "auto",
                      draft_path, retrieval_head_path;
    std::vector<std::string> aliases, further;
    std::int64_t device = 0, tensor_parallel = 1, max_model_len = 8192, threads = 0,
                 working_cache_bytes = 0, prefix_cache_bytes = -1;
    std::int64_t device_cache_bytes = -1, host_cache_bytes = -1, device_requests = 2,
                 draft_wait_ms = 500;
    std::int64_t draft_layers = 0;
    std::string draft_weights = "w8a8";
    bool draft_document_kv = false, split_kv = false;
  } model;
  struct Auth {
    std::string keys_file;
    bool allow_insecure = false;
    std::string jwt_issuer, jwt_audience, jwt_keys, jwt_namespace_claim = "namespaces",
                                                    jwt_scope_claim = "scope", jwt_scope_prefix;
    std::int64_t jwt_clock_skew_seconds = 60;
  } auth;
  struct Limits {
    std::int64_t requests_per_minute = 0, tokens_per_minute = 0, documents_per_call = 256,
                 document_tokens = 1 << 20, namespace_bytes = 0;
    std::int64_t documents_per_query = 64;
  } limits;
  struct Cache {
    std::int64_t block_tokens = 0, layers_per_value = 0, dram_bytes = std::int64_t{4} << 30;
    std::string eviction = "lru", page_locked = "auto", quotas_file;
    double max_pinned_ratio = 0.5;
    bool share_across_namespaces = false;
  } cache;
  struct Disk {
    std::string path = "./data", on_damage = "refuse", copy_path;
    std::int64_t record_copies = 1, max_bytes = 0, prompt_bytes = 1ll << 30, threads = 2;
    bool direct_io = true;
  } disk;
  struct Catalog {
    std::string url;
    std::int64_t poll_ms = 1000, timeout_ms = 5000, connections = 4, job_lease_ms = 20'000;
  } catalog;
  struct Remote {
    std::string url, mode = "read_write", write = "behind", keys_file;
    std::int64_t timeout_ms = 200, ttl_seconds = 7 * 24 * 3600, lease_ms = 10'000;
    bool hedged_reads = true;
  } remote;
  struct Policy {
    std::string strategy = "auto", compress = "auto", decode = "auto", lead_in = "auto";
    std::int64_t small_ctx = 256, default_ttl_seconds = 0;
    bool evidence = true;
    bool model_card = true;
    double shadow_ratio = 0, shadow_min_agreement = 0.9, fidelity_max_drop = 0.02;
  } policy;
  struct Retrieve {
    bool enabled = true, embeddings = false;
    std::string language = "english", scorer = "auto", order = "best_last", encoder, reranker;
    std::string embeddings_url, embeddings_model, embeddings_key_env;
    std::string encoder_weights = "f32";
    std::int64_t encoder_threads = 0, rerank = 20;
    double links = 0.6;
    std::int64_t max_index_bytes = std::int64_t{512} << 20,
                 max_index_disk_bytes = std::int64_t{4} << 30,
                 max_embedding_bytes = std::int64_t{512} << 20,
                 max_embedding_disk_bytes = std::int64_t{4} << 30, exact_embeddings = 10'000;
  } retrieve;
  struct Prompt {
    std::string intro = "auto", document = "auto", question = "auto", citation, namespaces_file;
  } prompt;
  struct Fetch {
    std::vector<std::string> hosts;
    bool private_addresses = false;
    std::int64_t max_bytes = std::int64_t{64} << 20, timeout_seconds = 60;
  } fetch;
  struct Explain {
    std::int64_t retain = 1000;
    bool keep_text = false;
  } explain;
  struct Metrics {
    bool enabled = true, is_public = false, per_namespace = false, vllm_names = false;
  } metrics;
  struct Trace {
    std::string endpoint, service_name = "quire";
    double ratio = 1;
  } trace;
  struct Backup {
    std::string path;
    std::int64_t every_hours = 24, keep = 7;
  } backup;
  struct Log {
    std::string level = "info", format = "auto", audit;
    bool texts = false, contexts = false, core_memory = false;
  } log;
};

/// Setting describes one setting: its name, its member of Config and its allowed values.
struct Setting {
  using Pointer =
      std::variant<std::string*, std::int64_t*, double*, bool*, std::vector<std::string>*>;
  std::string_view section, key;
  std::function<Pointer(Config&)> pointer;
  double min = 0, max = 0;                ///< for numbers
  std::vector<std::string_view> choices;  ///< for strings; empty: any
  std::string_view help;
  std::string name() const { return std::string(section) + "." + std::string(key); }
};
const std::vector<Setting>& setting_table();

/// Applies a TOML file. Errors name the setting (field "server.port"), the fault and its source. An
/// error for an unknown name suggests the nearest known one.
/// `refused`, if given, says why a setting may not stand in this file; empty: it may.
Status apply_toml(std::string_view text, const std::string& file_name, Config& config,
                  const std::function<std::string(const Setting&)>& refused = {});
/// Applies variables like QUIRE_SERVER__PORT; those without "__" are not settings. Lists are
/// separated by commas.
Status apply_environment(const std::vector<std::pair<std::string, std::string>>& variables,
                         Config& config);
/// Applies assignments, each like "server.port=8081".
Status apply_flags(const std::vector<std::string>& assignments, Config& config);
/// Checks combinations of settings, and values that this build does not support.
Status check_config(const Config& config);
/// Returns the whole configuration as TOML with help as comments, secrets of addresses hidden. But
/// for these, reading it gives the same configuration.
std::string config_to_toml(const Config& config, bool with_help);
/// Returns lines `section.key = value` of the settings whose values are not those of `base`.
std::string changed_to_toml(const Config& config, const Config& base);
/// Returns the names of the settings whose values differ, in the order of the table.
std::vector<std::string> changed_settings(const Config& a, const Config& b);

/// Applies the file (if given), the environment of this process and the flags, then checks the
/// result.
Result<Config> load_config(const std::string& file, const std::vector<std::string>& flags);
/// Returns the variables QUIRE_* of this process.
std::vector<std::pair<std::string, std::string>> quire_environment();
/// Errors: kIo, kNotFound.
Result<std::string> read_file(const std::string& path, std::size_t max_bytes);

}  // namespace quire
