"""The HTML report: one offline file about a run, a plan, or the change from one plan to another."""

from loadmaster.report.report import ReportFacts, write_plan_report, write_report

__all__ = ["ReportFacts", "write_plan_report", "write_report"]
