//! The figures and the budgets that they are held against.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Failure;

/// Budgets by figure. Source: the design's section 9; figures without a row have none.
const BUDGETS: &[(&str, f64)] = &[
    ("open_empty_ms", 6.0),
    ("open_10k_ms", 6.0),
    ("open_10k_stdio_ms", 12.0),
    ("turn_2000_ms", 35.0),
    ("turn_first_delta_ms", 2.0),
    ("flood_20x500_ms", 120.0),
    ("flood_first_deltas_ms", 10.0),
    ("delta_p50_ms", 0.3),
    ("delta_p99_ms", 3.0),
    ("delta_cpu_us_flood", 10.0),
    ("delta_cpu_us_paced", 25.0),
    ("rss_idle_mib", 15.0),
    ("rss_per_thread_kib", 50.0),
    ("store_bytes_per_thread", 4_096.0),
    ("scale_list_ms", 5.0),
    ("scale_read_ms", 5.0),
    ("scale_fork_ms", 5.0),
];

/// Figures by name; units are last in a name.
#[derive(Default)]
pub(crate) struct Report {
    figures: BTreeMap<&'static str, f64>,
}

impl Report {
    pub(crate) fn add(&mut self, name: &'static str, value: f64) {
        self.figures.insert(name, value);
    }

    pub(crate) fn print(&self) {
        println!("{:<26} {:>12} {:>10}", "figure", "measured", "budget");
        for (name, value) in &self.figures {
            let budget = BUDGETS.iter().find(|(known, _)| known == name).map(|(_, budget)| *budget);
            let shown = budget.map_or(String::new(), |budget| format!("{budget:>10}"));
            let verdict = match budget {
                Some(budget) if *value > budget => "  over",
                _ => "",
            };
            println!("{name:<26} {value:>12.3} {shown}{verdict}");
        }
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        std::fs::write(path, format!("{:#}\n", serde_json::json!(self.figures)))?;
        Ok(())
    }
}

/// The middle of some measurements; zero of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The value below which a share of the measurements lies; sorts them.
pub(crate) fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    values.get(at).copied().unwrap_or(0.0)
}
