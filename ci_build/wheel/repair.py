"""Repair: a published wheel becomes a clean, stripped, target-exact one, or nothing at all."""

from __future__ import annotations

from ci_build.wheel.repair_plan import Repaired, RepairPlan, SizePart

__all__ = ["RepairPlan", "Repaired", "SizePart"]
