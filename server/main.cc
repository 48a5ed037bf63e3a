// quire: a context cache for retrieval-augmented generation. This file parses the command line;
// server/commands holds the commands.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/nearest_name.h"
#include "kernels/cuda/backend/loader.h"
#include "kernels/matmul/matmul.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"
#include "server/support/version.h"

namespace {

/// Returns a message about a word in place of a command that names none; empty: there is no such
/// word.
std::string about_unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  std::string line = "quire";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    std::vector<std::string> names;
    const CLI::App* next = nullptr;
    for (const CLI::App* sub : at->get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(sub->get_name());
      if (sub->get_name() == word) next = sub;
    }
    if (names.empty() || word.starts_with('-')) return {};
    if (next == nullptr) {
      const std::string near = quire::nearest_name(word, names);
      return "there is no command '" + line + " " + word + "'" +
             (near.empty() ? "" : "; did you mean '" + line + " " + near + "'?") +
             "\nRun with --help for the commands.";
    }
    line += " " + word;
    at = next;
  }
  return {};
}

/// Runs the command. What it throws is said, not a crash; an answer that could not be written is a
/// failure.
int run_command(const quire::CommandRun& run) {
  int code = 1;
  try {
    code = run();
  } catch (const std::bad_alloc&) {
    code = quire::complain("there is not enough memory");
  } catch (const std::exception& e) {
    code = quire::complain(std::string("this is not expected: ") + e.what() +
                           ". What answered may be no Quire service, or of another version");
  }
  std::cout.flush();
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout;
  if (!lost) return code;
  const int error = errno;
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  const bool reader_left = error == EPIPE || (::poll(&out, 1, 0) == 1 && (out.revents & POLLERR));
  // Who reads no further, as head does, needs no message.
  if (!reader_left)
    (void)quire::complain(std::string("cannot write to the standard output") +
                          (error == 0 ? "" : std::string(": ") + std::strerror(error)));
  return code == 0 ? 1 : code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app{
      "Quire reads every document once, and answers from the few blocks of it that matter.\n\n"
      "  quire serve                                  start the service with the embedded model\n"
      "  quire ingest notes/ report.pdf               cache documents in a running service\n"
      "  quire query -d report.pdf \"What is new?\"     ask over cached documents\n"
      "  quire chat                                   talk about them in a terminal\n"
      "  quire bench long-doc                         measure a running service\n"};
  app.name("quire");
  app.require_subcommand(1);
  app.fallthrough(false);
  app.footer(
      "Each command has its own --help. Settings of the service: quire serve --print-config.");
  quire::CommandRun run;
  quire::add_serve_command(app, run);
  quire::add_ingest_command(app, run);
  quire::add_query_command(app, run);
  quire::add_chat_command(app, run);
  quire::add_explain_command(app, run);
  quire::add_retrieve_command(app, run);
  quire::add_documents_command(app, run);
  quire::add_store_command(app, run);
  quire::add_model_command(app, run);
  quire::add_tokenize_command(app, run);
  quire::add_generate_command(app, run);
  quire::add_fidelity_command(app, run);
  quire::add_admin_command(app, run);
  quire::add_keys_command(app, run);
  quire::add_mcp_command(app, run);
  quire::add_bench_command(app, run);
  quire::add_plan_capacity_command(app, run);
  quire::add_completion_command(app, run);
  app.add_subcommand("version", "Print version, build, and what computes")->callback([&run] {
    run = [] {
      std::printf("quire %s (%s)\n", std::string(quire::version()).c_str(),
                  std::string(quire::build_description()).c_str());
      const auto backend = quire::cuda::choose_backend("auto", 0, quire::cuda::has_device_file(),
                                                       quire::cuda::backend_library_files());
      if (!backend.ok()) return quire::complain(backend.status());
      std::printf("backend %s (%s); CUDA: %s\n", backend->name.c_str(), quire::cpu_isa(),
                  backend->cuda.c_str());
      return 0;
    };
  });
  app.set_version_flag("--version", std::string(quire::version()));
  std::vector<char*> line(argv, argv + argc);
  std::string help = "--help";
  if (argc >= 2 && std::string_view(argv[1]) == "help") {  // quire help ingest
    line.erase(line.begin() + 1);
    line.push_back(help.data());
  }
  if (const std::string wrong = about_unknown_command(app, static_cast<int>(line.size()),
                                                      line.data());
      !wrong.empty()) {
    (void)quire::complain(wrong);
    return 2;
  }
  try {
    app.parse(static_cast<int>(line.size()), line.data());
  } catch (const CLI::ParseError& e) {
    // Help and version give 0; a wrong command line gives 2, as usual.
    return app.exit(e) == 0 ? 0 : 2;
  }
  return run ? run_command(run) : 1;
}
