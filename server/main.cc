// quire: a context cache for retrieval-augmented generation. This file reads the command line; server/commands holds the rest.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "kernels/cuda/backend/loader.h"
#include "kernels/matmul.h"
#include "server/commands/commands.h"
#include "server/commands/model_path.h"
#include "server/version.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app{"Quire reads every document once, and answers from the few blocks of it that matter.\n\n"
               "  quire serve                                  start the service with the embedded model\n"
               "  quire ingest notes.md report.txt             cache documents in a running service\n"
               "  quire query -d notes \"What was decided?\"     ask over cached documents\n"};
  app.name("quire");
  app.require_subcommand(1);
  app.fallthrough(false);
  app.footer("Each command has its own --help. Settings of the service: quire serve --print-config.");
  quire::CommandRun run;
  quire::add_serve_command(app, run);
  quire::add_ingest_command(app, run);
  quire::add_query_command(app, run);
  quire::add_retrieve_command(app, run);
  quire::add_documents_command(app, run);
  quire::add_store_command(app, run);
  quire::add_model_command(app, run);
  quire::add_tokenize_command(app, run);
  quire::add_generate_command(app, run);
  quire::add_fidelity_command(app, run);
  quire::add_admin_command(app, run);
  quire::add_keys_command(app, run);
  app.add_subcommand("version", "Print version, build, and what computes")->callback([&run] {
    run = [] {
      std::printf("quire %s (%s)\n", std::string(quire::version()).c_str(), std::string(quire::build_description()).c_str());
      const auto backend = quire::cuda::choose_backend("auto", 0, quire::cuda::has_device_file(), quire::cuda::backend_library_files());
      if (!backend.ok()) return quire::complain(backend.status());
      std::printf("backend %s (%s); CUDA: %s\n", backend->name.c_str(), quire::cpu_isa(), backend->cuda.c_str());
      return 0;
    };
  });
  app.set_version_flag("--version", std::string(quire::version()));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;  // help and version end well; a wrong command line is 2, as everywhere
  }
  return run ? run() : 1;
}
