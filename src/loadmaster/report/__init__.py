"""The HTML report: one offline file about a run, a plan, or the change from one plan to another."""

from loadmaster.report.report import ReportFacts, report_files, write_plan_report, write_report

__all__ = ["ReportFacts", "report_files", "write_plan_report", "write_report"]
