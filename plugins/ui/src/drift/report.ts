// The drift report that `DriftSensor` stores for the pages.

export interface Histogram {
  reference: number[];
  current: number[];
  edges: number[];
  labels: string[];
}

export interface FeatureDrift {
  name: string;
  verdict: "drift" | "no drift" | "skipped";
  reason: string;
  effect: number | null;
  histogram: Histogram | null;
}

export interface ConceptDrift {
  verdict: "drift" | "no drift" | "not enough data";
  reason: string;
  measure: string;
  error_reference: number | null;
  error_current: number | null;
}

export interface JointDrift {
  verdict: "drift" | "no drift";
  reason: string;
}

export interface PerformanceEstimate {
  verdict: "drift" | "no drift" | "not enough data" | "skipped" | "withheld";
  reason: string;
}

export interface QualityProblem {
  kind: string;
  column: string;
  reason: string;
  severe: boolean;
}

export interface Report {
  verdict: "drift" | "no drift" | "not enough data" | "no champion" | "bad data" | "nothing compared";
  reason: string;
  reference_rows: number;
  current_rows: number;
  reference?: string;
  current?: string;
  features: FeatureDrift[];
  concept: ConceptDrift | null;
  joint?: JointDrift | null;
  estimate?: PerformanceEstimate | null;
  notes: string[];
  quality?: QualityProblem[];
}
