export declare function optionsPage(page: string): string;
