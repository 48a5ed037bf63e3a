#include <unistd.h>
#include <CLI/CLI.hpp>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/app/process_signals.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"
#include "server/commands/page_locked.h"
#include "server/commands/serve/check_settings.h"
#include "server/commands/serve/service.h"
#include "server/commands/service_options.h"
#include "server/commands/settings_flags.h"
#include "server/config/config.h"
#include "server/support/core_files.h"
#include "server/support/log_sink.h"
#include "server/support/second_signal.h"

namespace quire {
namespace {

struct ServeFlags {
  std::string config_file, backend;
  bool check = false, print = false;
  std::vector<std::string> settings;
  std::string model;
};

/// Says why, once: in the log where its lines are JSON, which something collects; else as a
/// sentence. Returns the exit code.
int cannot_start(const Config::Log& log, const Status& why) {
  if (!logs_json(log.format) || log.level == "off") return complain(why);
  log_error("the service cannot start", {{"reason", why.to_string()}});
  return 1;
}

int serve(const ServeFlags& flags) {
  keep_files_private();
  auto config = load_config(flags.config_file, flags.settings);
  if (!config.ok()) return complain(config.status());
  if (flags.print) {
    std::fputs(config_to_toml(*config, true).c_str(), stdout);
    return 0;
  }
  if (const Status s = check_policy(*config); !s.ok()) return complain(s);
  const Config::Log log = config->log;
  if (!flags.check) {
    if (const auto s = install_log_sink(log.level, log.format); !s.ok()) return complain(s);
  }
  if (!flags.check && !log.core_memory && !keep_memory_out_of_core_files())
    log_warning("the system lets no process keep its memory out of core files: none is written",
                {});
  auto backend = backend_choice(*config);
  if (!backend.ok())
    return flags.check ? complain(backend.status()) : cannot_start(log, backend.status());
  if (flags.check) {
    if (const Status s = check_page_locked(*config, backend->library != nullptr); !s.ok())
      return complain(s);
    if (const Status s = check_settings(*config); !s.ok()) return complain(s);
    std::printf("the configuration is valid\n");
    return 0;
  }
  log_line(backend->idle_gpu ? LogLevel::kWarning : LogLevel::kInfo,
           backend->library == nullptr ? "computing on the CPU" : "computing on the GPU",
           {{"backend", backend->name}, {"cuda", backend->cuda}});
  ProcessSignals signals;
  std::atomic<bool> failed{false}, loaded{false};
  Service service(std::move(*config), std::move(*backend), {flags.config_file, flags.settings},
                  [&failed](const Status& lost) {
                    failed = true;
                    log_error("the GPU is lost: the service ends and has to be started again",
                              {{"reason", lost.to_string()}});
                    kill(getpid(),
                         SIGTERM);  // wakes the thread that waits for signals, which drains
                  });
  if (const auto s = service.listen(); !s.ok()) return cannot_start(log, s);
  std::thread loader([&] {
    const auto s = service.load();
    loaded = true;
    if (s.ok()) return;
    failed = true;
    (void)cannot_start(log, s);
    kill(getpid(), SIGTERM);  // wakes the thread that waits for signals
  });
  SecondSignal ending;  // signals count when they are taken, which a reload may delay
  int signal = 0;
  // reload() has logged any error.
  while ((signal = signals.next()) == SIGHUP) (void)service.reload();
  (void)ending.take();
  service.start_drain();
  if (!failed) log_info("draining", {{"signal", signal == SIGINT ? "SIGINT" : "SIGTERM"}});
  std::thread second([&] {
    while (const int again = signals.next()) {
      if (again == SIGHUP || !ending.take()) continue;
      service.hurry();        // ends the wait for running requests
      if (!loaded) _exit(1);  // the model is still loading, so there is nothing to save
    }
  });
  loader.join();
  const bool all = service.stop(failed);
  signals.close();
  second.join();
  log_info("stopped", {{"all_requests_finished", all ? "true" : "false"}});
  set_log_sink(nullptr, LogLevel::kWarning);
  return failed ? 1 : 0;
}

}  // namespace

void add_serve_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<ServeFlags>();
  auto* c = app.add_subcommand(
      "serve",
      "Start the service.\nSettings come from --config FILE (TOML), then QUIRE_<SECTION>__<KEY>, "
      "then flags\n"
      "--section.key=value, for example --server.port=9000 --disk.path=/var/lib/quire");
  c->add_option("-c,--config", flags->config_file, "TOML file")->type_name("FILE");
  c->add_option("-m,--model", flags->model,
                "Short for --model.path=MODEL: a folder, a .gguf file, or hf:org/repo")
      ->type_name("MODEL");
  c->add_option("--backend", flags->backend, "Short for --model.backend=NAME")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  c->add_flag("--check-config", flags->check, "Say whether the settings are valid, and exit");
  c->add_flag("--print-config", flags->print, "Print all settings with help, as TOML, and exit");
  c->allow_extras();
  c->callback([c, flags, &run] {
    flags->settings = settings_from_flags(c->remaining());
    if (!flags->model.empty()) flags->settings.push_back("model.path=" + flags->model);
    if (!flags->backend.empty()) flags->settings.push_back("model.backend=" + flags->backend);
    run = [flags] { return serve(*flags); };
  });
}

}  // namespace quire
