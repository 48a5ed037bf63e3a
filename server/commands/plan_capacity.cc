#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/capacity/plan.h"
#include "server/capacity/rates.h"
#include "server/capacity/trace.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"
#include "server/config/byte_size.h"
#include "server/json/text.h"

namespace quire {
namespace {

struct PlanFlags {
  std::string trace, rates, convert, dram = "4GiB", disk = "0", remote = "none",
                                     routing = "affinity", eviction = "lru", memory = "2GiB",
                                     target;
  std::vector<std::uint32_t> replicas{1, 4, 16, 64, 256, 1000};
  std::uint32_t per_host = 1, max_running = 16;
  std::uint64_t copies = 1;
  double speed = 1, warmup = 0, sample = 0;
  bool as_json = false;
};

Result<std::uint64_t> bytes_of(const char* flag, const std::string& text) {
  const auto bytes = parse_byte_size(text);
  if (!bytes || *bytes < 0)
    return Status::invalid(
        flag, std::string("--") + flag + " is '" + text + "'; it must be a size such as 8GiB");
  return static_cast<std::uint64_t>(*bytes);
}

/// Returns the seconds of "0.5s" or "500ms".
Result<double> seconds_of(const char* flag, const std::string& text) {
  std::size_t end = 0;
  double value = -1;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {  // reported below
  }
  const std::string unit = text.substr(end);
  if (unit == "ms") value /= 1000;
  if (!(value > 0) || (unit != "s" && unit != "ms"))
    return Status::invalid(flag, std::string("--") + flag + " is '" + text +
                                     "'; it must be a time with its unit, such as 0.5s or 500ms");
  return value;
}

Result<capacity::PlanOptions> options_of(const PlanFlags& f) {
  capacity::PlanOptions o;
  o.replicas = f.replicas;
  QUIRE_ASSIGN_OR_RETURN(o.fleet.dram_bytes, bytes_of("dram", f.dram));
  QUIRE_ASSIGN_OR_RETURN(o.fleet.disk_bytes, bytes_of("disk", f.disk));
  QUIRE_ASSIGN_OR_RETURN(o.memory_bytes, bytes_of("memory", f.memory));
  o.fleet.remote = f.remote != "none";
  if (f.remote != "none" && f.remote != "unlimited") {
    QUIRE_ASSIGN_OR_RETURN(o.fleet.remote_bytes, bytes_of("remote", f.remote));
    if (o.fleet.remote_bytes == 0)
      return Status::invalid("remote", "--remote is 0; write none or unlimited, or a size");
  }
  QUIRE_ASSIGN_OR_RETURN(o.fleet.policy, parse_store_policy(f.eviction));
  o.fleet.routing = f.routing == "affinity" ? capacity::Routing::kAffinity
                                            : capacity::Routing::kRoundRobin;
  if (!f.target.empty()) {
    QUIRE_ASSIGN_OR_RETURN(o.target_ttft_p95, seconds_of("ttft-p95", f.target));
  }
  o.fleet.per_host = f.per_host;
  o.fleet.max_running = f.max_running;
  o.fleet.copies = f.copies;
  o.fleet.speed = f.speed;
  o.fleet.warmup_seconds = f.warmup;
  if (f.sample > 0) o.sample = f.sample;
  return o;
}

/// Writes the trace in Quire's own form.
Status convert(const std::vector<capacity::TraceRequest>& requests, const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  for (const capacity::TraceRequest& r : requests) out << capacity::trace_json(r) << '\n';
  out.close();
  return out ? Status() : Status::io("cannot write " + path);
}

int plan_capacity(const PlanFlags& f) {
  if (f.rates.empty() && f.convert.empty())
    return complain("name the rates of a replica with --rates; 'quire bench rates' measures them");
  auto requests = capacity::read_trace(f.trace);
  if (!requests.ok()) return complain(requests.status());
  if (!f.convert.empty())
    if (const Status s = convert(*requests, f.convert); !s.ok()) return complain(s);
  if (f.rates.empty()) return 0;
  const auto rates = capacity::read_rates(f.rates);
  if (!rates.ok()) return complain(rates.status());
  const auto options = options_of(f);
  if (!options.ok()) return complain(options.status());
  const capacity::Trace trace(std::move(*requests));
  const bool tell = ::isatty(2) != 0;
  const auto plan = capacity::make_plan(trace, *rates, *options, [tell](std::uint32_t replicas) {
    if (tell) std::fprintf(stderr, "\rsimulating %u replicas ", replicas);
  });
  if (tell) std::fprintf(stderr, "\r\x1b[K");
  if (!plan.ok()) return complain(plan.status());
  const auto outcome = [&] {
    if (!options->target_ttft_p95 || plan->smallest) return 0;
    return complain("none of these numbers of replicas reaches --ttft-p95 " + f.target +
                    "; name larger ones with --replicas");
  };
  if (f.as_json) {
    std::printf("%s\n", to_text(capacity::plan_json(*plan, *options)).c_str());
    return outcome();
  }
  std::printf("%zu questions over %llu contexts of %llu tokens, %s%.0f s\n\n",
              trace.entries().size(), static_cast<unsigned long long>(trace.distinct_contexts()),
              static_cast<unsigned long long>(trace.distinct_tokens()),
              f.copies > 1 ? (std::to_string(f.copies) + " such tenants, ").c_str() : "",
              trace.period() / f.speed);
  std::printf("%s", capacity::plan_text(*plan, *options).c_str());
  return outcome();
}

}  // namespace

void add_plan_capacity_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<PlanFlags>();
  PlanFlags& f = *flags;
  auto* c = app.add_subcommand(
      "plan-capacity",
      "Say how many replicas a trace of questions needs, and what their caches do.\nIt simulates "
      "them from rates that 'quire bench rates' measured (docs/capacity.md)");
  c->add_option("--trace", f.trace,
                "Questions: Quire's own form, Mooncake's, or the service's JSON log; may be gzip")
      ->required();
  c->add_option("--rates", f.rates, "What 'quire bench rates' wrote");
  c->add_option("--convert", f.convert, "Write the trace in Quire's own form to this file");
  c->add_option("--replicas", f.replicas, "Numbers of replicas, with commas between")
      ->delimiter(',')
      ->check(CLI::Range(1u, 100'000u))
      ->capture_default_str();
  c->add_option("--dram", f.dram, "cache.dram_bytes of a replica")->capture_default_str();
  c->add_option("--disk", f.disk, "disk.max_bytes of a replica; 0: no limit")
      ->capture_default_str();
  c->add_option("--remote", f.remote, "Bytes of the shared tier; none, or unlimited")
      ->capture_default_str();
  c->add_option("--routing", f.routing, "Of the load balancer")
      ->check(CLI::IsMember({"affinity", "round-robin"}))
      ->capture_default_str();
  c->add_option("--eviction", f.eviction, "cache.eviction: lru or s3fifo")
      ->check(CLI::IsMember({"lru", "s3fifo"}))
      ->capture_default_str();
  c->add_option(
      "--ttft-p95", f.target,
      "Look for the smallest number of replicas with this TTFT, such as 0.5s; exit status 1 if "
      "none reaches it");
  c->add_option("--copies", f.copies, "So many tenants with contexts of their own behave like this")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{10'000'000}))
      ->capture_default_str();
  c->add_option("--speed", f.speed, "Play the trace so many times as fast")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  c->add_option("--warmup", f.warmup, "Seconds that fill the tiers and are not counted")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  c->add_option("--per-host", f.per_host, "Replicas that share one host")
      ->check(CLI::Range(1u, 1024u))
      ->capture_default_str();
  c->add_option("--max-running", f.max_running, "Prompts and answers of a replica at once")
      ->check(CLI::Range(1u, 65536u))
      ->capture_default_str();
  c->add_option("--memory", f.memory,
                "Memory of the simulation; beyond it, tiers hold a sample of the contexts")
      ->capture_default_str();
  c->add_option("--sample", f.sample, "Share of the contexts; 0: as many as fit into the memory")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  c->add_flag("--json", f.as_json, "Print one JSON object");
  c->callback([flags, &run] { run = [flags] { return plan_capacity(*flags); }; });
}

}  // namespace quire
