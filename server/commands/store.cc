#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "cachestore/disk/repair.h"
#include "cachestore/store_admin.h"
#include "server/commands/commands.h"
#include "server/commands/environment_option.h"
#include "server/commands/model_files/model_path.h"
#include "server/commands/service_options.h"
#include "server/json/text.h"

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

Result<std::unique_ptr<AdminStore>> open_silently(const std::string& path, bool read_only) {
  // Only the service creates a store. Here a missing one means that the path is mistyped.
  if (!holds_store(path)) {
    std::error_code ec;
    (void)std::filesystem::exists(std::filesystem::path(path) / "STORE", ec);
    if (ec) return Status::io("cannot look into '" + path + "': " + ec.message());
    return Status::not_found("there is no store at '" + path + "'; name its folder with --path");
  }
  StoreOptions options;
  options.path = path;
  options.dram_bytes = 0;
  options.read_only = read_only;
  return open_admin_store(options);
}

/// Says what a store has lost. The next start of the service says so, too.
void say_lost(const LostWrites& writes) {
  const std::string lost = lost_text(writes);
  if (!lost.empty()) std::fprintf(stderr, "the store has lost %s\n", lost.c_str());
}

/// Opens a store and says what it has lost.
Result<std::unique_ptr<AdminStore>> open(const std::string& path, bool read_only) {
  auto store = open_silently(path, read_only);
  if (store.ok()) say_lost((*store)->lost_writes());
  return store;
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
  if (auto again = open_silently(path, false); !again.ok()) return complain(again.status());
  std::printf("moved %llu segments, %s; %llu had damaged values and will be computed again\n",
              static_cast<unsigned long long>(report->moved), human(report->bytes).c_str(),
              static_cast<unsigned long long>(report->bad));
  return report->left > 0 ? 1 : 0;
}

/// Says what can be saved of a damaged record, and with `apply` does it.
int repair(const std::string& path, const std::string& copy, bool apply, bool drop_kv) {
  std::error_code ec;
  if (!std::filesystem::is_directory(path, ec))
    return complain(
        Status::not_found("there is no store at '" + path + "'; name its folder with --path"));
  if (!copy.empty() && !std::filesystem::is_directory(copy, ec))
    return complain(Status::not_found("there is no copy of a record at '" + copy + "'"));
  const auto report = repair_store({path, /*dry_run=*/!apply, /*keep_kv=*/!drop_kv, copy});
  if (!report.ok()) return complain(report.status());
  say_lost(report->untold);
  for (const auto& line : report->damage) std::printf("damaged: %s\n", line.c_str());
  for (const auto& d : report->texts)
    std::printf("text only: %s %s: %s\n", d.ns.c_str(), d.id.c_str(), d.reason.c_str());
  for (const auto& d : report->lost)
    std::printf("lost: %s %s: %s\n", d.ns.c_str(), d.id.c_str(), d.reason.c_str());
  std::printf("%s\n", summary(*report).c_str());
  const bool whole = report->damage.empty() && report->texts.empty() && report->lost.empty() &&
                     !report->may_lack_documents;
  if (!apply) {
    std::printf("%s\n", whole ? "no damage was found, and nothing was changed; --apply makes a new "
                                "record all the same"
                              : "nothing was changed; --apply does it");
  } else {
    std::printf("the %s record lies in %s\n", whole ? "former" : "damaged",
                report->kept_folder.c_str());
    for (const auto& file : report->text_files)
      std::printf("post these texts again: %s\n", file.c_str());
  }
  return report->lost.empty() && report->texts.empty() && !report->may_lack_documents ? 0 : 2;
}

int backup(const std::string& path, const std::string& to, std::uint32_t keep) {
  auto store = open(path, false);
  if (!store.ok()) return complain(store.status());
  const auto report = (*store)->backup(to, keep);
  if (!report.ok()) return complain(report.status());
  std::printf("backup %u of %llu files, %s, without KV; %u in %s\n", report->number,
              static_cast<unsigned long long>(report->files), human(report->bytes).c_str(),
              report->backups, to.c_str());
  return 0;
}

int backups(const std::string& from) {
  const auto list = list_backups(from);
  if (!list.ok()) return complain(list.status());
  for (const auto& b : *list) {
    if (b.unusable)
      std::printf("backup %u  damaged: files of it are missing\n", b.number);
    else
      std::printf("backup %u  %s  %llu files, %s\n", b.number, rfc3339(b.made_ms).c_str(),
                  static_cast<unsigned long long>(b.files), human(b.bytes).c_str());
  }
  return 0;
}

int restore(const std::string& path, const std::string& from, std::uint32_t number) {
  const auto report = restore_store(from, path, number);
  if (!report.ok()) return complain(report.status());
  const auto store = open(path, false);
  if (!store.ok()) return complain(store.status());
  const auto documents = static_cast<unsigned long long>((*store)->stats().documents);
  std::printf("restored %llu document%s of backup %u to %s\n", documents, documents == 1 ? "" : "s",
              report->number, path.c_str());
  return 0;
}

}  // namespace

void add_store_command(CLI::App& app, CommandRun& run) {
  auto path = std::make_shared<std::string>("./data");
  auto* c = app.add_subcommand("store",
                               "Look after a store's folder. stats and backups also work beside a "
                               "running service; the others need it stopped");
  c->require_subcommand(1);
  const auto with_path = [&](CLI::App* command) {
    default_from_environment(
        command->add_option("-p,--path", *path, "Folder of the store (disk.path)"), *path,
        "QUIRE_DISK__PATH")
        ->capture_default_str();
    return command;
  };
  const auto add = [&](const char* name, const char* help, int (*call)(const std::string&)) {
    auto* s = c->add_subcommand(name, help);
    with_path(s);
    s->callback([path, call, &run] {
      run = [path, call] {
        keep_files_private();
        return call(*path);
      };
    });
  };
  add("stats", "Documents, segments, bytes", stats);
  add("verify", "Re-read everything and check every checksum; exit code 2 when something is bad",
      verify);
  add("gc", "Free what nothing refers to", gc);
  add("upgrade",
      "Move the KV of a store that an older version wrote to the layout of this one; the service "
      "does it too, while it runs",
      upgrade);
  auto* s = with_path(c->add_subcommand(
      "repair",
      "Put all that can be read of a damaged record into a new one, and say by id what cannot; "
      "exit code 2 when something is lost or may be. Without --apply it only says what it would "
      "do"));
  auto copy = std::make_shared<std::string>();
  s->add_option("--copy", *copy,
                "Folder of the second copy (disk.record_copies = 2): the new record is taken from "
                "it if it is whole");
  auto apply = std::make_shared<bool>(false), drop_kv = std::make_shared<bool>(false);
  s->add_flag("--apply", *apply, "Replace the record; the damaged one is kept beside it");
  s->add_flag("--drop-kv", *drop_kv, "Leave all KV behind, to be computed again");
  s->callback([path, copy, apply, drop_kv, &run] {
    run = [path, copy, apply, drop_kv] {
      keep_files_private();
      return repair(*path, *copy, *apply, *drop_kv);
    };
  });
  auto folder = std::make_shared<std::string>();
  auto keep = std::make_shared<std::uint32_t>(7);
  auto* b = with_path(c->add_subcommand(
      "backup",
      "Add a backup of all documents and jobs, without KV, to a folder: incremental, every byte "
      "checked"));
  b->add_option("to", *folder, "Folder of the backups")->required();
  b->add_option("--keep", *keep, "Newest backups to keep; 0: all")->capture_default_str();
  b->callback([path, folder, keep, &run] {
    run = [path, folder, keep] {
      keep_files_private();
      return backup(*path, *folder, *keep);
    };
  });
  auto* l = c->add_subcommand("backups", "List the backups in a folder, the newest one last");
  l->add_option("from", *folder, "Folder of the backups")->required();
  l->callback([folder, &run] { run = [folder] { return backups(*folder); }; });
  auto* r = with_path(c->add_subcommand(
      "restore", "Make a store of a backup in a folder; its KV is computed again"));
  r->add_option("from", *folder, "Folder of the backups")->required();
  auto number = std::make_shared<std::uint32_t>(0);
  r->add_option("--backup", *number, "Number of the backup (quire store backups); 0: the newest")
      ->capture_default_str();
  r->callback([path, folder, number, &run] {
    run = [path, folder, number] {
      keep_files_private();
      return restore(*path, *folder, *number);
    };
  });
}

}  // namespace quire
