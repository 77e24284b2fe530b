export declare function readFaults(folder: string): {
  readonly name: string;
  readonly file: string;
  readonly fault: string;
  readonly foundBy: readonly string[];
}[];
