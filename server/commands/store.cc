#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>

#include "cachestore/store_admin.h"
#include "server/commands/commands.h"
#include "server/commands/model_path.h"

namespace quire {
namespace {

std::string human(std::uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double v = static_cast<double>(bytes);
  int u = 0;
  while (v >= 1024 && u < 4) {
    v /= 1024;
    ++u;
  }
  char text[32];
  std::snprintf(text, sizeof text, u == 0 ? "%.0f %s" : "%.1f %s", v, units[u]);
  return text;
}

Result<std::unique_ptr<AdminStore>> open(const std::string& path, bool read_only) {
  std::error_code ec;
  if (!std::filesystem::is_directory(path, ec))
    return Status::not_found("there is no store at '" + path + "'; name its folder with --path");
  StoreOptions options;
  options.path = path;
  options.dram_bytes = 0;
  options.read_only = read_only;
  return open_admin_store(options);
}

int stats(const std::string& path) {
  auto store = open(path, true);
  if (!store.ok()) return complain(store.status());
  const StoreStats s = (*store)->stats();
  std::printf("folder      %s\n", path.c_str());
  std::printf("documents   %llu\n", static_cast<unsigned long long>(s.documents));
  std::printf("segments    %llu  (%s)\n", static_cast<unsigned long long>(s.segments),
              human(s.segment_bytes).c_str());
  std::printf("catalog     %s\n", human(s.catalog_bytes).c_str());
  for (const auto& ns : (*store)->namespaces())
    std::printf("namespace   %s: %llu documents, %llu tokens, %s of text\n", ns.name.c_str(),
                static_cast<unsigned long long>(ns.documents),
                static_cast<unsigned long long>(ns.tokens), human(ns.text_bytes).c_str());
  return 0;
}

int verify(const std::string& path) {
  auto store = open(path, false);
  if (!store.ok()) return complain(store.status());
  const bool bar = ::isatty(2);
  const auto report = (*store)->verify([bar](const VerifyReport& r) {
    if (bar)
      std::fprintf(stderr, "\r%llu of %llu segments, %s read ",
                   static_cast<unsigned long long>(r.segments),
                   static_cast<unsigned long long>(r.total_segments), human(r.bytes).c_str());
    return true;
  });
  if (bar) std::fprintf(stderr, "\n");
  if (!report.ok()) return complain(report.status());
  for (const auto& line : report->problems) std::printf("bad: %s\n", line.c_str());
  std::printf(
      "%llu documents, %llu segments, %llu values, %s: %llu bad documents, %llu bad segments\n",
      static_cast<unsigned long long>(report->documents),
      static_cast<unsigned long long>(report->segments),
      static_cast<unsigned long long>(report->values), human(report->bytes).c_str(),
      static_cast<unsigned long long>(report->bad_documents),
      static_cast<unsigned long long>(report->bad_segments));
  return report->bad_documents + report->bad_segments > 0 ? 2 : 0;
}

int gc(const std::string& path) {
  auto store = open(path, false);
  if (!store.ok()) return complain(store.status());
  const auto report = (*store)->gc();
  if (!report.ok()) return complain(report.status());
  std::printf("freed %llu segments, %llu files, %s; %llu documents had expired\n",
              static_cast<unsigned long long>(report->segments_freed),
              static_cast<unsigned long long>(report->files_freed),
              human(report->bytes_freed).c_str(),
              static_cast<unsigned long long>(report->documents_expired));
  return 0;
}

/// Moves the segments of an older layout. What an interrupted run moved stays moved.
int upgrade(const std::string& path) {
  auto store = open(path, false);
  if (!store.ok()) return complain(store.status());
  const bool bar = ::isatty(2);
  const auto report = (*store)->move_segments([bar](const MoveReport& r) {
    if (bar)
      std::fprintf(stderr, "\r%llu segments moved, %s, %llu left ",
                   static_cast<unsigned long long>(r.moved), human(r.bytes).c_str(),
                   static_cast<unsigned long long>(r.left));
    return true;
  });
  if (bar) std::fprintf(stderr, "\n");
  if (!report.ok()) return complain(report.status());
  store->reset();
  // Opening once more removes what is empty now.
  if (auto again = open(path, false); !again.ok()) return complain(again.status());
  std::printf("moved %llu segments, %s; %llu had damaged values and will be computed again\n",
              static_cast<unsigned long long>(report->moved), human(report->bytes).c_str(),
              static_cast<unsigned long long>(report->bad));
  return report->left > 0 ? 1 : 0;
}

}  // namespace

void add_store_command(CLI::App& app, CommandRun& run) {
  auto path = std::make_shared<std::string>("./data");
  auto* c = app.add_subcommand("store",
                               "Look after a store's folder. stats also works beside a running "
                               "service; verify, gc and upgrade need it stopped");
  c->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*call)(const std::string&)) {
    auto* s = c->add_subcommand(name, help);
    s->add_option("-p,--path", *path, "Folder of the store (disk.path)")
        ->envname("QUIRE_DISK__PATH")
        ->capture_default_str();
    s->callback([path, call, &run] { run = [path, call] { return call(*path); }; });
  };
  add("stats", "Documents, segments, bytes", stats);
  add("verify", "Re-read everything and check every checksum; exit code 2 when something is bad",
      verify);
  add("gc", "Free what nothing refers to", gc);
  add("upgrade",
      "Move the KV of a store that an older version wrote to the layout of this one; the service "
      "does it too, while it runs",
      upgrade);
}

}  // namespace quire
