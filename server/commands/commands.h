/// The subcommands of `quire`. Each file adds its command to the command line and runs it.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace quire {

/// Runs the command once the command line is parsed; returns the exit code.
using CommandRun = std::function<int()>;

void add_serve_command(CLI::App& app, CommandRun& run);
void add_ingest_command(CLI::App& app, CommandRun& run);
void add_query_command(CLI::App& app, CommandRun& run);
void add_chat_command(CLI::App& app, CommandRun& run);
void add_explain_command(CLI::App& app, CommandRun& run);
void add_retrieve_command(CLI::App& app, CommandRun& run);
void add_documents_command(CLI::App& app, CommandRun& run);
void add_store_command(CLI::App& app, CommandRun& run);
void add_model_command(CLI::App& app, CommandRun& run);
void add_calibrate_command(CLI::App& model, CommandRun& run);   ///< under `quire model`
void add_model_card_command(CLI::App& model, CommandRun& run);  ///< under `quire model`
void add_tokenize_command(CLI::App& app, CommandRun& run);
void add_generate_command(CLI::App& app, CommandRun& run);
void add_fidelity_command(CLI::App& app, CommandRun& run);
void add_admin_command(CLI::App& app, CommandRun& run);
void add_keys_command(CLI::App& app, CommandRun& run);
void add_mcp_command(CLI::App& app, CommandRun& run);
void add_bench_command(CLI::App& app, CommandRun& run);
void add_bench_rates_command(CLI::App& bench, CommandRun& run);  ///< under `quire bench`
void add_plan_capacity_command(CLI::App& app, CommandRun& run);
/// Added last, because it lists the others.
void add_completion_command(CLI::App& app, CommandRun& run);

}  // namespace quire
