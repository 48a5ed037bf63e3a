#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/index.h"
#include "server/commands/client.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"
#include "server/json/text.h"
#include "server/json/text_table.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Arguments of the subcommands of `quire admin`.
struct AdminFlags {
  ClientFlags client;
  std::vector<std::string> ids;
  std::string tier, file, by, request_id;
  std::int64_t older_than_seconds = -1, target_bytes = 0;  // these values: not given
  bool dry_run = false, force = false, as_json = false;
};

/// Prints a reply: a table at a terminal, else one line of JSON.
int show(const AdminFlags& flags, const Result<json::value>& reply) {
  if (!reply.ok()) return complain(reply.status());
  if (flags.as_json || ::isatty(STDOUT_FILENO) == 0 || !reply->is_object())
    std::printf("%s\n", to_text(*reply).c_str());
  else
    std::fputs(text_table(reply->as_object()).c_str(), stdout);
  return 0;
}

int get(const AdminFlags& flags, const std::string& target) {
  ClientRequest request;
  request.target = "/v1/admin/" + target;
  return show(flags, client_json(flags.client, std::move(request)));
}

int post(const AdminFlags& flags, const std::string& target, const json::object& body = {}) {
  ClientRequest request;
  request.method = "POST";
  request.target = "/v1/admin/" + target;
  request.body = to_text(body);
  request.content_type = "application/json";
  return show(flags, client_json(flags.client, std::move(request)));
}

json::object ids_body(const AdminFlags& flags) {
  json::array ids;
  for (const auto& id : flags.ids) ids.emplace_back(id);
  json::object body;
  if (!ids.empty()) body["document_ids"] = std::move(ids);
  return body;
}

int evict(const AdminFlags& flags) {
  json::object body = ids_body(flags);
  if (!flags.tier.empty()) body["tier"] = flags.tier;
  if (flags.older_than_seconds >= 0) body["older_than_seconds"] = flags.older_than_seconds;
  if (flags.target_bytes > 0) body["target_bytes"] = flags.target_bytes;
  body["dry_run"] = flags.dry_run;
  body["force"] = flags.force;
  return post(flags, "cache/evict", body);
}

int pin(const AdminFlags& flags, bool pinned) {
  json::object body = ids_body(flags);
  if (!flags.tier.empty()) body["tier"] = flags.tier;
  return post(flags, pinned ? "cache/pin" : "cache/unpin", body);
}

/// Returns exit code 2 if something is bad, like `quire store verify`.
int verify(const AdminFlags& flags) {
  ClientRequest request;
  request.method = "POST";
  request.target = "/v1/admin/cache/verify";
  request.timeout = std::chrono::hours(24);
  const auto reply = client_json(flags.client, std::move(request));
  if (const int rc = show(flags, reply); rc != 0) return rc;
  return reply->as_object().at("bad").to_number<std::int64_t>() > 0 ? 2 : 0;
}

int export_pack(const AdminFlags& flags) {
  // A pack that is there stays until this one is whole. What is no file, as a pipe, is written.
  std::error_code ec;
  const auto there = std::filesystem::status(flags.file, ec);
  const bool replaces = !std::filesystem::exists(there) || std::filesystem::is_regular_file(there);
  const std::string path = replaces ? flags.file + ".new" : flags.file;
  keep_files_private();
  // One that a killed export left may be of a time when others could read it.
  if (replaces) (void)std::remove(path.c_str());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) return complain("cannot write '" + path + "': " + std::strerror(errno));
  ClientRequest request;
  request.method = "POST";
  request.target = "/v1/admin/cache/export";
  request.body = to_text(ids_body(flags));
  request.content_type = "application/json";
  std::uint64_t bytes = 0;
  int error = 0;
  const auto reply = client_call(flags.client, std::move(request), [&](std::string_view piece) {
    bytes += piece.size();
    file.write(piece.data(), static_cast<std::streamsize>(piece.size()));
    if (!file) error = errno;
    return static_cast<bool>(file);
  });
  file.close();
  if (!file && error == 0) error = errno;
  bool written = static_cast<bool>(file);
  if (reply.ok() && written && replaces && std::rename(path.c_str(), flags.file.c_str()) != 0) {
    error = errno;
    written = false;
  }
  if (reply.ok() && written) {
    std::printf("%llu bytes in %s\n", static_cast<unsigned long long>(bytes), flags.file.c_str());
    return 0;
  }
  if (replaces) (void)std::remove(path.c_str());  // an incomplete pack is useless
  return error != 0 ? complain("cannot write '" + flags.file + "': " + std::strerror(error))
                    : complain(reply.status());
}

int import_pack(const AdminFlags& flags) {
  std::ifstream file(flags.file, std::ios::binary);
  if (!file) return complain("cannot read '" + flags.file + "': " + std::strerror(errno));
  ClientRequest request;
  request.method = "POST";
  request.target = "/v1/admin/cache/import?mode=merge";
  request.content_type = "application/vnd.quire.pack";
  request.body_source = [&](std::string& piece) {
    piece.resize(1u << 20);
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    piece.resize(to_size(file.gcount()));
    return !file.bad();
  };
  return show(flags, client_json(flags.client, std::move(request)));
}

}  // namespace

void add_admin_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<AdminFlags>();
  auto* c = app.add_subcommand("admin",
                               "Look after a running service: its cache, its requests, its "
                               "settings (needs a key with the scope admin)");
  c->require_subcommand(1);
  const auto add = [&](const char* name, const char* help,
                       std::function<int(const AdminFlags&)> call) {
    auto* s = c->add_subcommand(name, help);
    add_client_flags(*s, flags->client);
    s->add_flag("--json", flags->as_json, "Print JSON also at a terminal, not a table");
    s->callback([flags, call, &run] { run = [flags, call] { return call(*flags); }; });
    return s;
  };
  const auto tier = [&](CLI::App* s, const char* help) {
    s->add_option("--tier", flags->tier, help)->check(CLI::IsMember({"dram", "disk"}));
  };
  add("models", "The models of the service: the name that a request chooses each by, and its sizes",
      [](const AdminFlags& f) {
        ClientRequest request;
        request.target = "/v1/models";
        return show(f, client_json(f.client, std::move(request)));
      });
  auto* stats = add("stats", "Tiers, bytes, hits, savings", [](const AdminFlags& f) {
    return get(f, "cache/stats" + (f.by.empty() ? "" : "?by=" + f.by));
  });
  stats->add_option("--by", flags->by, "Also by namespace")
      ->check(CLI::IsMember({"namespace", "tier"}));
  auto* e = add("evict", "Take KV out of a tier; documents stay", evict);
  e->add_option("ID", flags->ids, "Documents; none: all");
  tier(e, "dram: copies in memory (default); disk: the KV itself");
  e->add_option("--older-than", flags->older_than_seconds,
                "Only what was not used for so many seconds")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{10'000'000'000}));
  e->add_option("--target-bytes", flags->target_bytes, "Enough once so many bytes are gone")
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  e->add_flag("--dry-run", flags->dry_run, "Only say what would go");
  e->add_flag("--force", flags->force, "Also what is pinned");
  auto* p = add("pin", "Keep the KV of documents",
                [](const AdminFlags& f) { return pin(f, true); });
  p->add_option("ID", flags->ids, "Documents")->required();
  tier(p, "dram: load it into memory too");
  auto* u = add("unpin", "Let the KV of documents go when room is needed",
                [](const AdminFlags& f) { return pin(f, false); });
  u->add_option("ID", flags->ids, "Documents")->required();
  add("flush", "Write what waits to disk",
      [](const AdminFlags& f) { return post(f, "cache/flush"); });
  add("backup", "Add a backup of all documents and jobs, without KV, to backup.path",
      [](const AdminFlags& f) { return post(f, "backup"); });
  add("verify", "Read everything again and check it; exit code 2 when something is bad", verify);
  auto* x = add("export", "Documents with their KV into a file", export_pack);
  x->add_option("FILE", flags->file, "The pack to write")->required();
  x->add_option("ID", flags->ids, "Documents; none: all of the namespace");
  auto* i = add("import", "A pack into the namespace", import_pack);
  i->add_option("FILE", flags->file, "The pack")->required()->check(CLI::ExistingFile);
  add("requests", "Queries that run or wait",
      [](const AdminFlags& f) { return get(f, "requests"); });
  auto* k = add("cancel", "Cancel a query", [](const AdminFlags& f) {
    return post(f, "requests/" + percent_encode(f.request_id) + "/cancel");
  });
  k->add_option("ID", flags->request_id, "Of `quire admin requests`")->required();
  add("config", "The effective settings", [](const AdminFlags& f) { return get(f, "config"); });
  add("reload",
      "Read keys, certificates and limits again; says which changed settings need a restart",
      [](const AdminFlags& f) { return post(f, "reload"); });
  add("drain", "Stop taking work; running requests finish",
      [](const AdminFlags& f) { return post(f, "drain"); });
}

}  // namespace quire
