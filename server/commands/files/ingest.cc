#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/index.h"
#include "ingest/document/document_types.h"
#include "server/commands/commands.h"
#include "server/commands/files/estimate.h"
#include "server/commands/files/ingest_run.h"
#include "server/commands/files/watched_files.h"
#include "server/commands/model_files/model_path.h"

namespace quire {
namespace {

constexpr std::size_t kMaxStdin = std::size_t{256} << 20;
constexpr int kWatchMilliseconds = 2000;
constexpr int kInterrupted = 130;

Result<std::string> read_stdin() {
  std::string out;
  char buffer[64 << 10];
  for (;;) {
    const auto n = ::read(0, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Status::io("standard input cannot be read");
    if (n == 0) return out;
    out.append(buffer, to_size(n));
    if (out.size() > kMaxStdin)
      return Status::exhausted("standard input has more than 256 MiB; split it");
  }
}

void add(IngestCounts& sum, const IngestCounts& one) {
  sum.created += one.created;
  sum.updated += one.updated;
  sum.unchanged += one.unchanged;
  sum.deleted += one.deleted;
  sum.skipped += one.skipped;
  sum.failed += one.failed;
  sum.cancelled += one.cancelled;
}

/// Runs a pass whenever a file has changed, until Ctrl-C.
int watch(const IngestFlags& flags, const std::vector<std::string>& paths, IngestRun& run,
          const Interrupt& interrupt, std::vector<FoundFile> seen) {
  std::fprintf(stderr, "watching; Ctrl-C ends\n");
  WatchedFiles watched(std::move(seen));
  std::string trouble;
  bool cut_short = false;
  while (!interrupt.wait(kWatchMilliseconds)) {
    auto walk = find_files(paths, flags.filter);
    if (!walk.ok()) continue;  // a folder that is being moved comes back, or stays away
    if (!watched.look(*walk)) continue;
    const auto counts = run.pass(*walk);
    cut_short = interrupt.requested();
    if (counts.ok()) {
      watched.taken(*walk);
      run.summarize(*counts);
      trouble.clear();
    } else if (std::string now = counts.status().to_string(); now != trouble) {
      (void)complain(counts.status());
      std::fprintf(stderr, "trying again until it works\n");
      trouble = std::move(now);
    }
  }
  return cut_short ? kInterrupted : 0;
}

int ingest(const IngestFlags& flags) {
  if (flags.overlap > 0 && flags.chunking == "markdown")
    return complain(
        "--overlap is for --chunking tokens; chunks that begin at headings do not overlap");
  std::vector<std::string> paths, urls;
  bool standard_input = false;
  for (const auto& path : flags.paths) {
    if (path == "-")
      standard_input = true;
    else if (path.starts_with("http://") || path.starts_with("https://"))
      urls.push_back(path);
    else
      paths.push_back(path);
  }
  if ((standard_input || !urls.empty()) && (flags.watch || flags.sync))
    return complain("--sync and --watch need files or folders; '" +
                    (standard_input ? std::string("-") : urls.front()) + "' is neither");
  const auto reader = ReaderProcess::find();
  if (!reader.ok()) return complain(reader.status());
  auto walk = find_files(paths, flags.filter);
  if (!walk.ok()) return complain(walk.status());

  Interrupt interrupt;
  IngestRun run(flags, *reader, interrupt);
  IngestCounts sum;
  if (!paths.empty()) {
    const auto counts = run.pass(*walk);
    if (!counts.ok()) return complain(counts.status());
    add(sum, *counts);
  }
  for (const std::string& url : urls) {
    if (interrupt.requested()) break;
    const auto counts = run.pass_url(url);
    if (!counts.ok()) return complain(counts.status());
    add(sum, *counts);
  }
  if (standard_input) {
    const auto bytes = read_stdin();
    if (!bytes.ok()) return complain(bytes.status());
    const auto counts = run.pass_stdin(*bytes);
    if (!counts.ok()) return complain(counts.status());
    add(sum, *counts);
  }
  run.summarize(sum);
  if (interrupt.requested()) {
    std::fprintf(stderr, "stopped, with %s in. The same command goes on where it stopped.\n",
                 counted(sum.created + sum.updated + sum.unchanged, "document").c_str());
    return kInterrupted;
  }
  if (flags.watch) return watch(flags, paths, run, interrupt, walk->files);
  if (sum.failed > 0)
    return complain(sum.failed == 1 ? std::string("one file or document was not cached")
                                    : grouped(sum.failed) + " files or documents were not cached");
  if (sum.created + sum.updated + sum.unchanged + sum.deleted + sum.skipped == 0)
    return complain("there is no file to read");
  return 0;
}

}  // namespace

void add_ingest_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<IngestFlags>();
  auto* c = app.add_subcommand(
      "ingest",
      "Cache documents in a running service: files, folders with all below them, quoted patterns\n"
      "such as 'notes/**/*.md', https addresses, or '-' for standard input. PDF, HTML, Markdown,\n"
      "DOCX, XLSX, PPTX, OpenDocument, EPUB, CSV, mail and text in any encoding are read; .jsonl\n"
      "files hold one document a line: {\"id\", \"title\", \"text\", \"metadata\"}. The id of a "
      "file\n"
      "is its path below the folder that is named. Files that are cached already are left alone.");
  c->add_option("PATH", flags->paths, "Files, folders, patterns, addresses, or -")->required();
  add_client_flags(*c, flags->client);
  c->add_option("--include", flags->filter.include, "Only files that match this pattern")
      ->allow_extra_args(false);
  c->add_option("--exclude", flags->filter.exclude, "No files or folders that match this pattern")
      ->allow_extra_args(false);
  c->add_option("--encoding", flags->encoding, "Of text files, such as windows-1252");
  c->add_option("--name", flags->stdin_name, "File name of the document on standard input")
      ->capture_default_str();
  c->add_flag("--sync", flags->sync, "Delete documents of the named folders whose file is gone");
  c->add_flag("--watch", flags->watch, "Go on, and take in files as they change");
  c->add_flag("--dry-run", flags->dry_run, "Read the files and say what would be done");
  c->add_flag("--replace", flags->replace, "Replace documents that came from another folder");
  c->add_option("--chunking", flags->chunking,
                "Where texts are cut: markdown at headings, tokens anywhere; auto: at headings in "
                "formats that have them, unless --overlap is given")
      ->check(CLI::IsMember({"auto", "markdown", "tokens"}))
      ->capture_default_str();
  c->add_option("--max-tokens", flags->max_tokens, "Longest chunk")->capture_default_str();
  c->add_option("--overlap", flags->overlap, "Tokens repeated between chunks cut by tokens")
      ->capture_default_str();
  c->add_option("--context-tokens", flags->context_tokens,
                "Read each chunk behind those before it, in windows of this many tokens; 0: alone")
      ->capture_default_str();
  c->add_option(
       "--related-tokens", flags->related_tokens,
       "Read each document behind up to this many tokens of chunks of other documents that "
       "its words find; 0: none. Run first with --kv lazy, so that all files can be found")
      ->check(CLI::Range(0, kMaxRelatedTokens))
      ->capture_default_str();
  auto* lead_in = c->add_flag_callback(
      "--lead-in", [flags] { flags->lead_in = true; },
      "Read each document behind a short fixed text: its cache is nearer to recomputing. Default: "
      "as policy.lead_in of the service says");
  c->add_flag_callback(
       "--no-lead-in", [flags] { flags->lead_in = false; }, "Read each document without it")
      ->excludes(lead_in);
  c->add_flag("--pinned", flags->pinned, "Never evict their cache");
  c->add_option("--kv", flags->kv,
                "When KV is computed: now, by the first query that needs it, or never kept")
      ->check(CLI::IsMember({"eager", "lazy", "text_only"}))
      ->capture_default_str();
  c->add_flag("-q,--quiet", flags->quiet, "Print failures only");
  c->callback([flags, &run] { run = [flags] { return ingest(*flags); }; });
}

}  // namespace quire
